"""Federated training by its public name: this module is `converter.federated`."""

from __future__ import annotations

import sys

from converter import federated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from converter.federated import *

sys.modules[__name__] = federated
