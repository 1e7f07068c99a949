"""The stock interpreter: the signatures of a program, called in place."""

from __future__ import annotations

from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from converter.errors import DeviceError, UsageError
from converter.manifest import Signature, TensorSpec
from converter.program_file import ProgramFile


class Entry:
    """One signature, its inputs and outputs as NumPy views of the interpreter's own memory.

    LiteRT's SignatureRunner resizes, allocates and copies at every call; with the state among the inputs that is most
    of a step. Inputs keep their values from call to call: the memory planner never puts anything else there.
    """

    def __init__(self, interpreter: Interpreter, name: str, signature: Signature) -> None:
        runner = interpreter.get_signature_runner(name)
        inputs, outputs = runner.get_input_details(), runner.get_output_details()
        _check("inputs", inputs, signature.inputs)
        _check("outputs", outputs, signature.outputs)
        self.name = name
        self.signature = signature
        self._native = interpreter._interpreter
        self._subgraph = runner._subgraph_index
        self._inputs = {key: details["index"] for key, details in inputs.items()}
        self._outputs = {key: details["index"] for key, details in outputs.items()}
        self._is_allocated = False

    def allocate(self) -> None:
        """Takes the memory that the signature needs, once."""
        if not self._is_allocated:
            self._native.AllocateTensors(self._subgraph)
            self._is_allocated = True

    def input(self, name: str) -> np.ndarray:
        """Where an input is written. Not to be kept."""
        return self._native.tensor(self._native, self._inputs[name], self._subgraph)

    def output(self, name: str) -> np.ndarray:
        """Where an output is read after `invoke`. Not to be kept."""
        return self._native.tensor(self._native, self._outputs[name], self._subgraph)

    def invoke(self) -> None:
        """Runs the signature on what the inputs hold; other Python threads go on meanwhile.

        Raises:
            UsageError: an index in an input points past the end of a table.
            DeviceError: LiteRT gave up.
        """
        try:
            self._native.Invoke(self._subgraph)
        except (RuntimeError, ValueError) as error:
            if "out of bounds" in str(error):
                raise UsageError(f"{self.name}: an index in an input is out of range (LiteRT: {error})") from None
            raise DeviceError(f"LiteRT could not run {self.name}: {error}") from None


class Engine:
    """A program in an interpreter. A signature takes memory when it is first asked for."""

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
        try:
            self._entries = {
                name: Entry(self._interpreter, name, signature)
                for name, signature in program.manifest.signatures.items()
            }
        except ValueError as error:
            raise UsageError(f"the program is not what its manifest says ({error}): build it again") from None

    def entry(self, name: str) -> Entry:
        """A signature by name, ready to be called. Raises DeviceError when there is no memory for it."""
        entry = self._entries[name]
        try:
            entry.allocate()
        except (RuntimeError, ValueError) as error:
            raise DeviceError(f"LiteRT cannot prepare {name}: {error}") from None
        return entry


def _check(side: str, details: dict[str, Any], specs: tuple[TensorSpec, ...]) -> None:
    """Raises ValueError when a signature in the file is not that of the manifest."""
    found = {name: (tuple(map(int, d["shape"])), np.dtype(d["dtype"]).name) for name, d in details.items()}
    stated = {spec.name: (spec.shape, spec.dtype) for spec in specs}
    if found != stated:
        raise ValueError(f"{side} {found} against {stated}")
