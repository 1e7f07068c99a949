"""The host runtime: trains a program in the stock interpreter of ai-edge-litert, on Linux and on a Raspberry Pi."""

from converter.runtime.session import TrainingSession
from converter.runtime.state_file import State, StateWarning, load_state, save_state

__all__ = ["TrainingSession", "State", "StateWarning", "load_state", "save_state"]
