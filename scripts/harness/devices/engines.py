"""Engines on this machine: LiteRT's on its GPU, or on what emulates one; an emulated Hexagon; a browser's."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import ClassVar

from converter.backend import builtins as tfl
from converter.backend.emit.emit import Subgraph, emit
from converter.ir import FLOAT32, Builder, TensorType
from converter.runtime.engines.engine import Engine
from converter.runtime.engines.gpu import Gpu
from converter.runtime.engines.hexagon import Hexagon
from converter.runtime.engines.web import Web
from converter.runtime.engines.work import Outcome, Task
from converter.support.errors import UsageError
from scripts.harness.device import Facts
from scripts.harness.devices.computer import Computer


class EngineHost(Computer):
    """See Device. What runs is an engine that is set up on this machine.

    Attributes:
        engine: it.
    """

    engine: ClassVar[Engine]

    def prepare(self) -> None:
        """See Device. Raises UsageError where the engine is not set up."""
        if (lacking := self.engine.missing()) is not None:
            raise UsageError(f"--on {self.name}: {lacking}")
        super().prepare()


class EmulatedHost(EngineHost):
    """Its times mean nothing.

    Attributes:
        runs: what of the engine is told beside the model of this machine.
    """

    runs: ClassVar[str]

    def facts(self) -> Facts:
        """See Device."""
        facts = super().facts()
        return replace(facts, model=f"{self.runs} on {facts.model}", is_emulator=True)


class HexagonHost(EmulatedHost):
    """The gradients are computed on Qualcomm's emulation, the updates on the CPU."""

    engine = Hexagon()
    runs = f"{engine.title} {engine.soc}"


class WebHost(EmulatedHost):
    """A step takes as long as it takes to carry the state into the browser and back."""

    engine = Web()
    runs = f"{engine.title} {engine.version} in a browser"


class GpuHost(EngineHost):
    """Whether there is a GPU, and which, LiteRT says when it compiles a program."""

    engine = Gpu()

    def facts(self) -> Facts:
        """See Device."""
        facts, asked = super().facts(), self._asked
        emulated = "adapterType=CPU" in asked.log
        return replace(facts, model=f"{asked.said['driver']} on {facts.model}", is_emulator=emulated)

    @cached_property
    def _asked(self) -> Outcome:
        """What the engine says of a program that does next to nothing."""
        b = Builder()
        b.graph.outputs["y"] = b(tfl.Neg(), b.input("x", TensorType((1,), FLOAT32)))
        (outcome,) = self.engine.run([Task(emit([Subgraph("call", b.graph)], {}, "one number"))])
        if outcome.error:
            raise UsageError(f"--on {self.name}: the GPU engine of LiteRT does not run: {outcome.error}")
        return outcome
