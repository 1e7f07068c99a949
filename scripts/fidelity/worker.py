"""Runs files in the interpreter of the environment that it is started in: `worker.py IN OUT`.

IN is a pickled list of (file, calls); a call is (signature, inputs). OUT gets for each file, with XNNPACK and without,
the outputs of its calls, or the text of the error.
"""

import pickle
import sys
from pathlib import Path

try:
    from ai_edge_litert import interpreter as tflite
except ModuleNotFoundError:
    from tflite_runtime import interpreter as tflite

RESOLVERS = (tflite.OpResolverType.AUTO, tflite.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)


def results(data, calls, resolver):
    """Return the outputs of the calls, or what the runtime says against the file."""
    try:
        runtime = tflite.Interpreter(model_content=data, experimental_op_resolver_type=resolver, num_threads=1)
        return [runtime.get_signature_runner(signature)(**inputs) for signature, inputs in calls]
    except (RuntimeError, ValueError) as error:
        return str(error)


jobs = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301  of who started it
done = [[results(data, calls, resolver) for resolver in RESOLVERS] for data, calls in jobs]
Path(sys.argv[2]).write_bytes(pickle.dumps(done))
