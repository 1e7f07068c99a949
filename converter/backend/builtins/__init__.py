"""The lowered ops, one class per TFLite builtin: `from converter.backend import builtins as tfl`, `tfl.Conv2D(...)`."""

from converter.backend.builtins.arithmetic import *
from converter.backend.builtins.base import *
from converter.backend.builtins.control import *
from converter.backend.builtins.conv import *
from converter.backend.builtins.foreign import *
from converter.backend.builtins.indexing import *
from converter.backend.builtins.integers import *
from converter.backend.builtins.logic import *
from converter.backend.builtins.matrix import *
from converter.backend.builtins.movement import *
from converter.backend.builtins.quantized import *
from converter.backend.builtins.reductions import *
from converter.backend.builtins.state import *
