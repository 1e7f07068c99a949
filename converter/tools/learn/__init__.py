"""Training a language model on a person's examples, from their texts to an adapter: see `run.py`."""

from converter.tools.learn.run import Learned, Plan, learn

__all__ = ["Learned", "Plan", "learn"]
