"""Training a language model on a user's examples, from their texts to an adapter: see `run.py`."""

from converter.tools.learn.plan import Learned
from converter.tools.learn.run import learn

__all__ = ["Learned", "learn"]
