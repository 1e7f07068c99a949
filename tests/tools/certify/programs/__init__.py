"""Small training programs of many kinds, as people write them."""

from tests.tools.certify.programs import convolutional, heads, sequences
from tests.tools.certify.programs.made import PROGRAMS

__all__ = ["PROGRAMS", "convolutional", "heads", "sequences"]
