"""The stock interpreter: the signatures of a program, called in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from converter.program.file import ProgramFile
from converter.program.flatbuffer.metadata import runs_bodies
from converter.program.manifest import Signature
from converter.runtime.interpreters.entry import ProgramEngine, SignatureEntry, check_tensors
from converter.support.errors import DeviceError
from converter.support.litert import Interpreter, OpResolverType


class InterpreterEntry(SignatureEntry):
    """One signature, its inputs and outputs as NumPy views of the interpreter's own memory.

    LiteRT's SignatureRunner resizes, allocates and copies at every call; with the state among the inputs that is most
    of a step. Inputs keep their values from call to call: the memory planner never puts anything else there.
    """

    def __init__(
        self, interpreter: Interpreter, frees: bool, stored: Callable[[str], str], name: str, signature: Signature
    ) -> None:
        super().__init__(name, signature, frees)
        runner = interpreter.get_signature_runner(stored(name))
        inputs, outputs = runner.get_input_details(), runner.get_output_details()
        check_tensors("inputs", inputs, signature.inputs)
        check_tensors("outputs", outputs, signature.outputs)
        self._native = interpreter._interpreter
        self._subgraph = runner._subgraph_index
        self._inputs = {key: details["index"] for key, details in inputs.items()}
        self._outputs = {key: details["index"] for key, details in outputs.items()}
        self._is_allocated = False

    def allocate(self) -> None:
        if not self._is_allocated:
            self._native.AllocateTensors(self._subgraph)
            self._is_allocated = True

    def input(self, name: str) -> np.ndarray:
        return self._native.tensor(self._native, self._inputs[name], self._subgraph)

    def output(self, name: str) -> np.ndarray:
        return self._native.tensor(self._native, self._outputs[name], self._subgraph)

    def run(self) -> None:
        self._native.Invoke(self._subgraph)


class InterpreterEngine(ProgramEngine):
    """A program in an interpreter."""

    def __init__(self, program: ProgramFile, threads: int, xnnpack: bool) -> None:
        """Loads the program.

        Raises:
            DeviceError: LiteRT does not take it.
            UsageError: its signatures are not those of its manifest.
        """
        resolver = OpResolverType.AUTO if xnnpack else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        # By path LiteRT maps the file too: its pages are shared with other processes, and the system may drop them.
        model = {"model_content": program.data} if program.path is None else {"model_path": program.path}
        try:
            # Kept as long as the entries: it owns the file, whose constants LiteRT reads in place.
            self._interpreter = Interpreter(**model, num_threads=threads, experimental_op_resolver_type=resolver)
        except (RuntimeError, ValueError) as error:
            raise DeviceError(f"LiteRT does not take the program: {error}") from None
        super().__init__(
            program.manifest, partial(InterpreterEntry, self._interpreter, runs_bodies(program.data), program.stored)
        )
