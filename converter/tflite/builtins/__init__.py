"""The lowered ops, one class per TFLite builtin: `from converter.tflite import builtins as tfl`, `tfl.Conv2D(...)`."""

from converter.tflite.builtins.arithmetic import *
from converter.tflite.builtins.base import *
from converter.tflite.builtins.carried import *
from converter.tflite.builtins.control import *
from converter.tflite.builtins.conv import *
from converter.tflite.builtins.indexing import *
from converter.tflite.builtins.integers import *
from converter.tflite.builtins.logic import *
from converter.tflite.builtins.matrix import *
from converter.tflite.builtins.movement import *
from converter.tflite.builtins.quantized import *
from converter.tflite.builtins.reductions import *
from converter.tflite.builtins.state import *
