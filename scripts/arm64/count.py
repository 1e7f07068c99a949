"""Counts the arm64 instructions of one invocation of a model; run by the emulated Python of scripts/arm64/prepare.

    COUNT=1 CPU=cortex-a76 DEST/python scripts/arm64/count.py MODEL.tflite [SIGNATURE]     XNN=0 turns XNNPACK off

The emulator's plugin counts between two marks, which are calls of a system call that does not exist, and prints COUNT.
"""

import ctypes
import os
import sys

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

MARK = 5000
BUILTIN = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES


def mark(number: int) -> None:
    """Tells the plugin where counting begins (1) and ends (2)."""
    ctypes.CDLL(None).syscall(ctypes.c_long(MARK), ctypes.c_long(number))


def main() -> None:
    """Runs the signature once to warm up and once between the marks, on random numbers."""
    resolver = OpResolverType.AUTO if os.environ.get("XNN", "1") == "1" else BUILTIN
    interpreter = Interpreter(sys.argv[1], num_threads=1, experimental_op_resolver_type=resolver)
    name = sys.argv[2] if len(sys.argv) > 2 else next(iter(interpreter.get_signature_list()))
    run = interpreter.get_signature_runner(name)
    rng = np.random.default_rng(0)
    feed = {
        key: rng.standard_normal(detail["shape"]).astype(detail["dtype"])
        if detail["dtype"] == np.float32
        else np.zeros(detail["shape"], detail["dtype"])
        for key, detail in run.get_input_details().items()
    }
    run(**feed)
    mark(1)
    run(**feed)
    mark(2)


if __name__ == "__main__":
    main()
