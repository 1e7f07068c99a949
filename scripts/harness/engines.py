"""Engines on this machine: LiteRT's on its GPU, or on what emulates one; an emulated Hexagon; a browser's."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from converter.engines.engine import Engine
from converter.engines.gpu import Gpu
from converter.engines.hexagon import Hexagon
from converter.engines.web import Web
from converter.engines.work import Outcome, Task
from converter.errors import UsageError
from converter.ir import FLOAT32, Builder, TensorType
from converter.tflite import builtins as tfl
from converter.tflite.emit import Subgraph, emit
from scripts.harness.computer import Computer
from scripts.harness.device import Facts


class GpuHost(Computer):
    """See Device. Whether there is a GPU, and which, LiteRT says when it compiles a program."""

    def facts(self) -> Facts:
        """See Device."""
        facts, asked = super().facts(), self._asked
        emulated = "adapterType=CPU" in asked.log
        return replace(facts, model=f"{asked.said['driver']} on {facts.model}", is_emulator=emulated)

    def prepare(self) -> None:
        """See Device. Raises UsageError where there is no GPU and nothing that emulates one."""
        _check_there(self.name, Gpu())
        super().prepare()

    @cached_property
    def _asked(self) -> Outcome:
        """What the engine says of a program that does next to nothing."""
        b = Builder()
        b.graph.outputs["y"] = b(tfl.Neg(), b.input("x", TensorType((1,), FLOAT32)))
        (outcome,) = Gpu().run([Task(emit([Subgraph("call", b.graph)], {}, "one number"))])
        if outcome.error:
            raise UsageError(f"--on {self.name}: the GPU engine of LiteRT does not run: {outcome.error}")
        return outcome


class HexagonHost(Computer):
    """See Device. The gradients are computed on Qualcomm's emulation, the updates on the CPU."""

    def facts(self) -> Facts:
        """See Device."""
        facts, hexagon = super().facts(), Hexagon()
        return replace(facts, model=f"{hexagon.title} {hexagon.soc} on {facts.model}", is_emulator=True)

    def prepare(self) -> None:
        """See Device. Raises UsageError where Qualcomm's libraries are missing."""
        _check_there(self.name, Hexagon())
        super().prepare()


class WebHost(Computer):
    """See Device. A step takes as long as it takes to carry the state into the browser and back."""

    def facts(self) -> Facts:
        """See Device."""
        facts, web = super().facts(), Web()
        return replace(facts, model=f"{web.title} {web.version} in a browser on {facts.model}", is_emulator=True)

    def prepare(self) -> None:
        """See Device. Raises UsageError where there is no browser or no LiteRT.js."""
        _check_there(self.name, Web())
        super().prepare()


def _check_there(name: str, engine: Engine) -> None:
    if (lacking := engine.missing()) is not None:
        raise UsageError(f"--on {name}: {lacking}")
