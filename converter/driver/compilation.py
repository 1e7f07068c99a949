"""Compilation state: the data of a build between two passes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from converter.backend.lowering.forms import FormChoice
from converter.backend.targets import Target
from converter.driver.options import Options
from converter.driver.requests import Request
from converter.frontends.source import FileExport, Source
from converter.ir import Graph, Parameter, Value
from converter.ir.batch_norm import BatchNorm
from converter.ir.module import Module
from converter.ir.quantization import Integers
from converter.program.manifest import ClassHead, LabelledOutput
from converter.support.notes import Note
from converter.training.losses import JointLoss, Loss
from converter.training.optim import OptimizerProgram
from converter.training.schemes import Adapter, Plain, SchemeRow
from converter.training.step import StepForm

if TYPE_CHECKING:
    from converter.driver.quantization import QuantizationReport


@dataclass(frozen=True)
class Grafted:
    """The file that is exported of a model that was read from one.

    Attributes:
        file: what stays of it.
        suffix: what is computed again, lowered; None for nothing.
        fixed: why it is for its own number of rows alone, in words; None where it is not.
    """

    file: FileExport
    suffix: Graph | None
    fixed: str | None = None


class _NotYet:
    """Stands for what a later pass makes."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("a pass reads what no pass before it has made")

    def __iter__(self) -> Any:
        raise AssertionError("a pass reads what no pass before it has made")


NOT_YET: Any = _NotYet()


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Graphs of one model, in the order in which they are made.

    Attributes:
        model: the forward graph: as traced, then canonical, with adapters, and with what trains alone as parameters.
        forward: the canonical one.
        unrounded: `model` with its float32 weights, where frozen ones are int4 or float16.
        probed: `model`, with marks where `fisher` looks.
        prefix: what all signatures begin with, lowered already: frozen layers in int8.
        suffix: the model after that prefix.
        inference: `suffix` without what is random in training.
        scored: `inference` with its loss.
        exported: the model that is exported, lowered for several rows, where `infer` is for too few to tell rows from
            other axes.
    """

    model: Graph
    forward: Graph = NOT_YET
    unrounded: Graph = NOT_YET
    probed: Graph = NOT_YET
    prefix: Graph | None = None
    suffix: Graph = NOT_YET
    inference: Graph = NOT_YET
    scored: Graph = NOT_YET
    exported: Graph | None = None


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """Facts about one build. A pass returns it with some of them replaced.

    Attributes:
        source: the model.
        request: what was asked for.
        loss: as for `build`, known.
        optimizer: an optax.GradientTransformation, for a learning rate of 1.
        learning_rate: that it was built with, where it is a number; None where it runs in the program.
        other_rows: the model's graph for other numbers of rows, for which `infer` is asked for too.
        generating: graphs by which a language model writes a text on, by signature.
        of_few: why the model is not for several rows, in words; empty where it is, or nobody asked.
        several_rows: where a step's rows come in several calls, the model's graph for more than one row.
        report: takes the forms of the first signature, which is the training step.
        graphs: the model at each stage.
        program: the signatures, semantic graphs and then lowered ones.
        resolved: the scheme, parameter by parameter.
        rows: the same with adapters.
        adapters: of frozen weights.
        transposed: names of matrices kept as [outputs, inputs], where adapters or several lengths ask for it to be
            known before.
        by_batch: batch normalization layers that take the statistics of the batch.
        normalized: what these layers read, by layer.
        rule: the update of every parameter.
        integers: how trained weights are stored in int8, by name; those that are not there are float32.
        counter: the number of the call, which random numbers are made of, and what keeps it.
        step: how a step is cut into signatures.
        goal: the loss, joined with the model.
        step_goal: what a step minimizes: that, and what keeps the model near its base.
        mixing: where rows of a batch influence each other, by signature.
        augmentation: what a step does to its inputs.
        poles: operations of the step that may be infinite, in words.
        plain: the model that is exported of one with adapters.
        whole_infer: `infer` of the model's inputs where the file has it on features alone: it is what is exported.
        grafted: the file that is exported of a model that was read from one.
        labelled: the outputs whose classes the labels name, with the parameters of their last layers.
        head: the last layer, where the runtime may set it without a gradient.
        quantization: what became int8, int4 or float16.
        notes: what the user is to know.
    """

    source: Source
    request: Request
    loss: Any
    optimizer: Any
    learning_rate: float | None
    other_rows: Mapping[int, Graph]
    generating: Mapping[str, Graph]
    several_rows: Graph | None
    of_few: str
    report: list[FormChoice]
    graphs: Stages
    program: Module = field(default_factory=Module)
    resolved: list[SchemeRow] = NOT_YET
    rows: list[SchemeRow] = NOT_YET
    adapters: list[Adapter] = field(default_factory=list)
    transposed: Collection[str] | None = None
    by_batch: Sequence[BatchNorm] = ()
    normalized: Mapping[str, Value] = field(default_factory=dict)
    rule: OptimizerProgram = NOT_YET
    integers: Mapping[str, Integers] = field(default_factory=dict)
    counter: tuple[Value, Parameter] = NOT_YET
    step: StepForm = NOT_YET
    goal: Loss | JointLoss = NOT_YET
    step_goal: Loss | JointLoss = NOT_YET
    mixing: dict[str, str] = field(default_factory=dict)
    augmentation: Graph | None = None
    poles: tuple[str, ...] = ()
    plain: Plain | None = None
    whole_infer: Graph | None = None
    grafted: Grafted | None = None
    labelled: tuple[LabelledOutput, ...] = ()
    head: ClassHead | None = None
    quantization: QuantizationReport | None = None
    notes: Sequence[Note] = ()

    @property
    def options(self) -> Options:
        """What was asked for, as it was."""
        return self.request.options

    @property
    def target(self) -> Target:
        """What the program is for."""
        return self.request.target

    @property
    def once(self) -> Target:
        """The target of what is read once: for what others are given, or what is read off a convolution."""
        return self.target.storing_once()

    @property
    def modules(self) -> Mapping[str, Module]:
        """What the pass manager looks at."""
        return {"model": Module({"forward": self.graphs.model}), "program": self.program}

    def finished(self) -> Compilation:
        """Return what the file is made of: graphs that only passes read hold large constants."""
        read = Stages(model=NOT_YET, exported=self.graphs.exported)
        unread = {"counter": NOT_YET, "step": NOT_YET, "several_rows": None, "augmentation": None}
        return replace(self, graphs=read, other_rows={}, generating={}, **unread)

    def staged(self, **graphs: Any) -> Compilation:
        """Return the same with some graphs of `Stages` replaced."""
        return replace(self, graphs=replace(self.graphs, **graphs))

    def offers(self, signature: str) -> bool:
        """Return whether a signature was asked for."""
        return signature in self.request.signatures
