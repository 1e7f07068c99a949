"""Counts what one invocation of a program does on arm64; run by the emulated Python of scripts/arm64/prepare.

    COUNT=instructions DEST/python scripts/arm64/count.py FILE.tflite[:SIGNATURE]...     XNN=0 turns XNNPACK off

The emulator's plugin counts between two marks, which are calls of a system call that does not exist, and prints a line
for each.
"""

import ctypes
import os
import sys

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

MARK = 5000
SYSCALL = ctypes.CDLL(None).syscall
BUILTIN = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES


def mark(number: int) -> None:
    """Tells the plugin where counting begins (1) and ends (2)."""
    SYSCALL(ctypes.c_long(MARK), ctypes.c_long(number))


def numbers(name: str, detail: dict) -> np.ndarray:
    """Return an input. The weights stay as they are: infinities would be slow to emulate."""
    shape, kind = detail["shape"], detail["dtype"]
    if kind != np.float32 or name == "learning_rate":
        return np.zeros(shape, kind)
    return np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(kind)


def main() -> None:
    """Runs each program once to warm up and once between the marks."""
    resolver = OpResolverType.AUTO if os.environ.get("XNN", "1") == "1" else BUILTIN
    for word in sys.argv[1:]:
        file, _, signature = word.partition(":")
        interpreter = Interpreter(file, num_threads=1, experimental_op_resolver_type=resolver)
        if signature:
            runner = interpreter.get_signature_runner(signature)
            feed = {name: numbers(name, detail) for name, detail in runner.get_input_details().items()}
        else:
            interpreter.allocate_tensors()
            for detail in interpreter.get_input_details():
                interpreter.set_tensor(detail["index"], numbers(detail["name"], detail))
        for is_counted in (False, True):
            if is_counted:
                mark(1)
            if signature:
                runner(**feed)
            else:
                interpreter.invoke()
            if is_counted:
                mark(2)


if __name__ == "__main__":
    main()
