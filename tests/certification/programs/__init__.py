"""Small training programs of many kinds, as people write them."""

from tests.certification.programs import convolutional, heads, sequences
from tests.certification.programs.made import PROGRAMS

__all__ = ["PROGRAMS", "convolutional", "heads", "sequences"]
