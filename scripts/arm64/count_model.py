"""count_model.py MODEL.tflite [SIGNATURE]: arm64 instructions of one invocation (run by COUNT=1 DEST/python). XNN=0 turns XNNPACK off."""

import ctypes
import os
import sys

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

syscall = ctypes.CDLL(None).syscall
mark = lambda k: syscall(ctypes.c_long(5000), ctypes.c_long(k))
kw = (
    {}
    if os.environ.get("XNN", "1") == "1"
    else dict(experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
)
it = Interpreter(sys.argv[1], num_threads=1, **kw)
name = sys.argv[2] if len(sys.argv) > 2 else next(iter(it.get_signature_list()))
run = it.get_signature_runner(name)
rng = np.random.default_rng(0)
feed = {
    k: (rng.standard_normal(d["shape"]) if d["dtype"] == np.float32 else np.zeros(d["shape"])).astype(d["dtype"])
    for k, d in run.get_input_details().items()
}
run(**feed)
mark(1)
run(**feed)
mark(2)
