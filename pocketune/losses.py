"""Losses by their public name: this module is `converter.training.losses`."""

from __future__ import annotations

import sys

from converter.training import losses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from converter.training.losses import *

sys.modules[__name__] = losses
