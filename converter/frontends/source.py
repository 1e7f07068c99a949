"""Imported model: its graph, and as objects of their own what some models say beside it.

A front end fills in what its models know; each of these objects has a reader in the driver, which asks for nothing
else. A model that says nothing of the kind leaves it out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from converter.ir import Graph, Interface, Value
from converter.ir.batch_norm import BatchNorm
from converter.program.flatbuffer.buffers import Buffers
from converter.program.gguf_names import Names
from converter.support.notes import Note
from converter.training.constraints import Constraint
from converter.training.losses import JointLoss, Loss, Penalty

if TYPE_CHECKING:  # it needs optax, which a device that only runs programs has not
    from converter.training.optim.foreign import ForeignOptimizer


@dataclass(frozen=True)
class Compiled:
    """What the model's author trained it with: the defaults where the user names nothing.

    Attributes:
        loss: None where there was none, or it cannot be taken over.
        problem: why it cannot.
        optimizer: an optax transformation for a learning rate of 1; None where there was none, or it cannot be taken
            over.
        optimizer_name: what it is called.
        learning_rate: its own; None where it runs in the program.
        notes: what of it is not used.
        optimizer_problem: why the optimizer cannot be taken over.
        loss_options: options of the loss, in words.
        optimizer_options: settings of the optimizer, in words.
    """

    loss: Loss | JointLoss | None
    problem: str | None
    optimizer: Any = None
    optimizer_name: str = ""
    learning_rate: float | None = None
    notes: Sequence[Note] = ()
    optimizer_problem: str | None = None
    loss_options: Sequence[str] = ()
    optimizer_options: Sequence[str] = ()


@dataclass(frozen=True)
class Defaults:
    """What a model is trained with where the user names nothing.

    Attributes:
        compiled: what it was compiled with; None for nothing.
        loss: the name of the loss that such models are trained with; None: it says nothing.
        optimizer: that of the optimizer.
        rates: learning rates that fit such models, by the name of the optimizer, where they are others than usual.
    """

    compiled: Compiled | None = None
    loss: str | None = None
    optimizer: str | None = None
    rates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Regularization:
    """What holds weights while they train, by the names of the parameters.

    Attributes:
        penalties: what is added to the loss.
        constraints: what each is brought back into after a step.
    """

    penalties: Mapping[str, Penalty] = field(default_factory=dict)
    constraints: Mapping[str, Constraint] = field(default_factory=dict)


@dataclass(frozen=True)
class Words:
    """What a model says to the app.

    Attributes:
        labels: names of its classes; None: it names none.
        preprocessing: how an input is made, as JSON of the app's own; None: it does not say.
        card: what people are to know of it, texts by names as of a model card (`license`, `author`).
    """

    labels: Sequence[str] | None = None
    preprocessing: Mapping[str, Any] | None = None
    card: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Language:
    """What a language model has beside its rows of tokens.

    Attributes:
        generates: what makes the graphs of further signatures, by which it writes a text on.
        gguf: what llama.cpp calls its weights; None where it has no such models.
    """

    generates: Mapping[str, Callable[[], Graph]]
    gguf: Names | None = None


class Library(ABC):
    """The library that models of a front end are trained with: its losses, its optimizers and what it leaves fixed.

    Attributes:
        title: what people call it.
    """

    title: ClassVar[str]

    def loss(self, loss: Any, outputs: Mapping[str, Value], targets: Any, own: bool) -> Loss | None:
        """Return what a loss of the library computes; None: it is none of its.

        Args:
            loss: anything but a name.
            outputs: the model's outputs by name.
            targets: what the user says of y; None: as the loss takes it.
            own: whether the model is one of this library: a function that names no library is of its tensors then.

        Raises:
            UsageError, UnsupportedError: it is one, and cannot be taken over.
        """
        return None

    def of_classes(self, loss: Any, before: int, classes: int) -> Any:
        """Return a loss as it is of another number of classes: other than it is where it holds a number for each.

        Args:
            loss: anything.
            before: of how many classes it is.
            classes: of how many it is to be: the first ones, or others after them.
        """
        return loss

    def reads(self, optimizer: Any) -> bool:
        """Return whether something is an optimizer of the library."""
        return False

    def optimizer(self, optimizer: Any) -> ForeignOptimizer:
        """Return what an optimizer that it reads does.

        Raises:
            UsageError: it cannot be taken over, or has parameters that are not the model's.
        """
        raise NotImplementedError

    def as_trained(self, source: Source, optimizer: Any) -> Source:
        """Return a model with all fixed that the library itself would leave as it is, and notes that say so.

        Args:
            source: a model of the library, or any that is trained with one of its optimizers.
            optimizer: that one; None: another.
        """
        return source


class FileExport(ABC):
    """The file that is exported of a model that was read from one, as far as it is known before weights are.

    Attributes:
        graph: what is computed again, for one row; None for nothing.
        notes: what the user is to know of it.
    """

    graph: Graph | None
    notes: Sequence[Note]

    @abstractmethod
    def assembly(self, suffix: Graph | None, program: Buffers) -> bytes:
        """Return the metadata entry of that file; see `converter.program.assembly`.

        Args:
            suffix: what is computed again, lowered and scheduled.
            program: the buffers of the program; constants that it lacks are added.
        """


class ModelFile(ABC):
    """A file that a model was read from, whose own operators compute what does not train."""

    @property
    @abstractmethod
    def integers(self) -> Collection[str]:
        """Names of parameters that are integers in the file."""

    @property
    @abstractmethod
    def is_quantized(self) -> bool:
        """Whether operators of the file compute on integers that stand for real numbers."""

    @property
    @abstractmethod
    def has_float16(self) -> bool:
        """Whether weights of the file are stored in float16."""

    @abstractmethod
    def carried(self, graph: Graph) -> tuple[Graph, int]:
        """Return a forward graph that begins with the file's own operators, and how many these are."""

    @abstractmethod
    def computed(self, graph: Graph) -> Graph:
        """Return a forward graph in which nothing is the file's own.

        Raises:
            UnsupportedError: it holds operators that only the runtime knows.
        """

    @abstractmethod
    def independent_rows(self, graph: Graph) -> Graph:
        """Return what a graph of one row is for two, of a file that is for one at a time: each on its own."""

    @abstractmethod
    def export(self, trained: Collection[str], labels: Sequence[str] | None, classes: int) -> FileExport:
        """Return what is exported when some parameters are trained.

        Args:
            trained: their names.
            labels: names of the classes, in the place of the file's; None: not asked for.
            classes: how many numbers the model's first output has.
        """

    @abstractmethod
    def computed_anew(self, trained: Collection[str], rows: int) -> Graph | None:
        """Return what `export` computes again, for other rows than those of the file; None for nothing."""


@dataclass(frozen=True)
class Source:
    """An imported model.

    Attributes:
        graph: its forward graph.
        name: what it is called.
        blocks: the blocks it names itself; None: read from the names.
        notes: what it does in training alone, and what becomes of that.
        defaults: what it is trained with where nobody says.
        regularization: what holds its weights.
        batch_norms: its batch normalization layers, where the importer knows them.
        library: what it is trained with elsewhere, which knows its parameters; None: JAX.
        file: that it was read from, where its operators go on to be used.
        words: for the app.
        language: where it is a language model.
        lengths: what imports it for rows of fewer tokens, by how many, where it is built for several lengths.
        interface: what its author calls its inputs and outputs, where that is not as in the graph.
    """

    graph: Graph
    name: str
    blocks: Sequence[str] | None = None
    notes: Sequence[Note] = ()
    defaults: Defaults = field(default_factory=Defaults)
    regularization: Regularization = field(default_factory=Regularization)
    batch_norms: Sequence[BatchNorm] = ()
    library: Library | None = None
    file: ModelFile | None = None
    words: Words = field(default_factory=Words)
    language: Language | None = None
    lengths: Mapping[int, Callable[[int], Source]] = field(default_factory=dict)
    interface: Interface = field(default_factory=Interface)
