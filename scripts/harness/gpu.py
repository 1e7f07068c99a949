"""This machine's GPU, or what emulates one, through LiteRT's GPU engine."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from converter.certification.engines.gpu import Gpu
from converter.certification.work import Outcome, Task
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
        if (lacking := Gpu().missing()) is not None:
            raise UsageError(f"--on {self.name}: {lacking}")
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
