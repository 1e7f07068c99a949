"""The host runtime by its public name: this module is `converter.runtime`."""

from __future__ import annotations

import sys

from converter import runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from converter.runtime import *

sys.modules[__name__] = runtime
