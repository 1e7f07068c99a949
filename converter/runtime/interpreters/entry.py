"""Runtime interface of a session: `interpreter.py`, or `compiled.py`, which keeps packed weights in a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from converter.program.manifest import FEATURES, Manifest, Signature, TensorSpec
from converter.support.collecting import give_back
from converter.support.errors import DeviceError, UsageError

#: Calls that leave freed memory behind which later ones do not use again, since what else they took lies in between.
#: To give it back after all calls would make each half as long again.
SETTLING = 2


class SignatureEntry(ABC):
    """One signature, called in place. Its inputs keep their values from call to call.

    Attributes:
        rounds_to_float16: whether its engine computes with numbers of that size, whatever it takes and gives.
    """

    rounds_to_float16 = False

    def __init__(self, name: str, signature: Signature, frees: bool = False) -> None:
        """`frees`: whether a call of it takes and frees memory of this process, as loops do for their steps."""
        self.name = name
        self.signature = signature
        self._settles = SETTLING if frees else 0

    @abstractmethod
    def allocate(self) -> None:
        """Takes the memory that the signature needs, once. Raises RuntimeError or ValueError."""

    @abstractmethod
    def input(self, name: str) -> np.ndarray:
        """Return an input in place, to be read and written. Not to be kept."""

    def write(self, name: str, array: np.ndarray) -> None:
        """Replaces an input by an array of its shape and dtype, of which an engine need not keep a copy of its own."""
        self.input(name)[...] = array

    @abstractmethod
    def output(self, name: str) -> np.ndarray:
        """Return where an output is read after `invoke`. Not to be kept."""

    @abstractmethod
    def run(self) -> None:
        """What `invoke` does, with the runtime's own errors: RuntimeError or ValueError."""

    def invoke(self) -> None:
        """Runs the signature on what the inputs hold; other Python threads go on meanwhile.

        Raises:
            UsageError: an index in an input points past the end of a table.
            DeviceError: LiteRT gave up.
        """
        try:
            self.run()
        except (RuntimeError, ValueError) as error:
            if "out of bounds" in str(error):
                raise UsageError(
                    f"{self.name}: an index in an input is out of range, below 0 or past the end of its table, as a "
                    "token id of another model's tokenizer is",
                    page="sessions",
                ) from None
            raise DeviceError(f"LiteRT could not run {self.name}: {error}") from None
        if self._settles:
            self._settles -= 1
            give_back()


@dataclass(frozen=True)
class Report:
    """What really runs a program.

    Attributes:
        runs: `cpu`, `gpu` or `npu`.
        driver: of an accelerator, by its own name.
        emulated: whether that is a processor that plays one: its times say nothing.
        whole: whether nothing of the signatures that it was given is left to the CPU.
        left: operators that are, as far as they are counted.
        reasons: why, by operator.
        on_cpu: signatures that are the CPU's anyway.
    """

    runs: str = "cpu"
    driver: str = ""
    emulated: bool = False
    whole: bool = True
    left: int = 0
    reasons: tuple[str, ...] = ()
    on_cpu: tuple[str, ...] = ()

    def __str__(self) -> str:
        by = self.driver or "XNNPACK"
        if self.whole:
            return by
        return f"{by}, {self.left or 'some'} operators on the CPU ({'; '.join(self.reasons) or 'no reason was given'})"


class BehindFeatures(SignatureEntry):
    """A signature that the file has on features alone: `features` is called with the rows before each call of it."""

    def __init__(self, name: str, signature: Signature, features: SignatureEntry, rest: SignatureEntry) -> None:
        """`features` and `rest` are ready to be called."""
        super().__init__(name, signature)
        self._features, self._rest = features, rest
        self._of_features = {spec.name for spec in features.signature.inputs}
        self.rounds_to_float16 = features.rounds_to_float16 or rest.rounds_to_float16

    def allocate(self) -> None:
        self._features.allocate()
        self._rest.allocate()

    def input(self, name: str) -> np.ndarray:
        return self._owner(name).input(name)

    def write(self, name: str, array: np.ndarray) -> None:
        self._owner(name).write(name, array)

    def output(self, name: str) -> np.ndarray:
        return self._rest.output(name)

    def run(self) -> None:
        self._features.invoke()
        for spec in self._rest.signature.taking("input"):
            self._rest.write(spec.name, self._features.output(spec.name))
        self._rest.invoke()

    def _owner(self, name: str) -> SignatureEntry:
        return self._features if name in self._of_features else self._rest


class ProgramEngine:
    """A program in a runtime. A signature takes memory when it is first asked for.

    Attributes:
        report: what runs it.
    """

    def __init__(
        self, manifest: Manifest, make: Callable[[str, Signature], SignatureEntry], report: Report | None = None
    ) -> None:
        """Makes the entries. Raises UsageError when a signature of the file is not that of the manifest."""
        self.report = report or Report(on_cpu=tuple(manifest.signatures))
        self._manifest, self._behind = manifest, dict[str, BehindFeatures]()
        try:
            self._entries = {name: make(name, signature) for name, signature in manifest.signatures.items()}
        except ValueError as error:
            raise UsageError(
                f"the program is not what its manifest says ({error}): build it again", page="sessions"
            ) from None

    def entry(self, name: str) -> SignatureEntry:
        """Return what `manifest.calls` has by a name, ready to be called.

        Raises:
            DeviceError: there is no memory for it.
        """
        on_features = self._manifest.behind_features.get(name)
        if on_features is None:
            return self._own(name)
        if name not in self._behind:
            parts = self._own(FEATURES), self._own(on_features)
            self._behind[name] = BehindFeatures(name, self._manifest.calls[name], *parts)
        return self._behind[name]

    def _own(self, name: str) -> SignatureEntry:
        """Return a signature of the file."""
        entry = self._entries[name]
        try:
            entry.allocate()
        except (RuntimeError, ValueError) as error:
            raise DeviceError(f"LiteRT cannot prepare {name}: {error}") from None
        return entry


class Divided(ProgramEngine):
    """A program in two runtimes, each of which runs signatures of its own."""

    def __init__(self, engine: ProgramEngine, cpu: ProgramEngine, on_cpu: tuple[str, ...]) -> None:
        self._engine, self._cpu, self._on_cpu = engine, cpu, on_cpu
        self._manifest, self._behind = engine._manifest, {}
        self.report = replace(engine.report, on_cpu=on_cpu)

    def _own(self, name: str) -> SignatureEntry:
        return (self._cpu if name in self._on_cpu else self._engine).entry(name)


def check_tensors(side: str, details: Mapping[str, Mapping[str, Any]], specs: tuple[TensorSpec, ...]) -> None:
    """Raises ValueError when a signature in the file is not that of the manifest."""
    found = {name: (tuple(map(int, d["shape"])), np.dtype(d["dtype"]).name) for name, d in details.items()}
    stated = {spec.name: (spec.shape, spec.dtype) for spec in specs}
    if found != stated:
        raise ValueError(f"{side} {found} against {stated}")
