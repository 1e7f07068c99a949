"""The semantic ops, by subject. `from converter.ir import ops`, then `ops.Conv2D(...)`."""

from converter.ir.ops.activations import *
from converter.ir.ops.conv import *
from converter.ir.ops.cross_entropy import *
from converter.ir.ops.custom import *
from converter.ir.ops.elementwise import *
from converter.ir.ops.functions import *
from converter.ir.ops.indexing import *
from converter.ir.ops.linear import *
from converter.ir.ops.logic import *
from converter.ir.ops.loop import *
from converter.ir.ops.marks import *
from converter.ir.ops.nn import *
from converter.ir.ops.pool import *
from converter.ir.ops.random import *
from converter.ir.ops.reduce import *
from converter.ir.ops.rounding import *
from converter.ir.ops.shape import *
from converter.ir.ops.stored import *
