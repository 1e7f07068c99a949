"""The manifest: what a training program says about itself, as JSON in the `.tflite`'s metadata.

The compiler writes it; the runtimes on the host and the phone read it and believe nothing they have not checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Literal, TypeVar

import numpy as np

from converter.program.manifest.certificates import Certificate
from converter.program.manifest.classes import ClassHead, LabelledOutput
from converter.program.manifest.identity import Identity, ModelTensor
from converter.program.manifest.labels import TargetLabels
from converter.program.manifest.names import FEATURES, ON_FEATURES, at_length, rows_to_infer
from converter.program.manifest.schema import ROLES
from converter.program.manifest.weights import ChosenChannels, ParameterSpec, StoredDtype

T = TypeVar("T")

#: Names of the metadata entries of a program.
MANIFEST, INITIAL, FROZEN = "pocketune.manifest", "pocketune.initial/", "pocketune.frozen/"
INFERENCE = "pocketune.inference"

#: int8, uint8, int16: what the frozen first layers gave in integers, from `features` to the step on them, and what a
#: model is fed whose file takes integers.
Dtype = Literal["float32", "int32", "bool", "int8", "uint8", "int16"]
Role = Literal[
    "input",
    "target",
    "weight",
    "learning_rate",
    "state",
    "gradient",
    "tick",
    "loss",
    "row_losses",
    "correct",
    "figure",
    "mask",
    "output",
    "fisher",
    "finite",
    "done",
]
#: What a gradient is called, and what gradients are added up in: this, and the state tensor that it belongs to.
GRADIENT: str = ROLES["gradient"]["prefix"]
#: The state tensor of the last step's loss, where the update reads it: several calls of a step hand it on as they do
#: gradients.
LOSS_OF_STEP = "optimizer/loss"
#: What the Fisher information of a weight's channels is called: this, and the weight's name.
FISHER: str = ROLES["fisher"]["prefix"]
#: What the mask is called that says which places of an output count: this, and the output's name.
MASK: str = ROLES["mask"]["prefix"]
#: What the loss of each row is called, where a step gives it.
ROW_LOSSES = "row_losses"
#: What the target is called, and where there are several, what each is called: this, a slash and its own name.
TARGET = "y"


def gathered(results: Mapping[str, T]) -> T | tuple[T, ...] | dict[str, T]:
    """Return results as a user gets them: the only one itself, a dict where they have names, a tuple where not."""
    if len(results) == 1:
        return next(iter(results.values()))
    numbered = all(name in (f"output_{i}", f"features_{i}") for i, name in enumerate(results))
    return tuple(results.values()) if numbered else dict(results)


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a signature. `role` says who feeds or reads it."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    role: Role

    @property
    def label(self) -> str:
        """What the user calls it: of several targets each is `y/<label>`."""
        return self.name.removeprefix(f"{TARGET}/") if self.role == "target" else self.name

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of one entry point of the program, in order.

    Attributes:
        mixing: a sentence on where rows of a batch influence each other; such calls take whole batches. None: nowhere.
        fixed: for `infer`, or `infer_features` in its place, why the exported model takes only its own number of rows.
            None: it takes any number.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    mixing: str | None = None
    fixed: str | None = None

    def taking(self, role: Role) -> tuple[TensorSpec, ...]:
        """Return the inputs of a role."""
        return tuple(spec for spec in self.inputs if spec.role == role)

    def giving(self, role: Role) -> tuple[TensorSpec, ...]:
        """Return the outputs of a role."""
        return tuple(spec for spec in self.outputs if spec.role == role)

    def behind(self, features: Signature) -> Signature:
        """Return this one, which takes features, as it is where `features` is called before it with the rows."""
        return replace(self, inputs=(*features.inputs, *(spec for spec in self.inputs if spec.role != "input")))


@dataclass(frozen=True)
class StateTensor:
    """A tensor that outlives a step, as stored: a trained one, or a slot of the optimizer.

    Attributes:
        model: what it is in the model's own terms; None where an older Pocketune did not say.
    """

    tensor: str
    shape: tuple[int, ...]
    dtype: StoredDtype
    slot: bool
    model: ModelTensor | None = None

    @property
    def name(self) -> str:
        """What the user calls it."""
        return self.tensor if self.model is None else self.model.name


def kept_of(parameter: str, tensors: Sequence[StateTensor]) -> tuple[StateTensor, ...]:
    """Return the tensors of a parameter, and what the optimizer keeps for it alone, of all tensors of a state."""
    names = [tensor.name for tensor in tensors if not tensor.slot]

    def owner(tensor: StateTensor) -> str:
        return max((name for name in names if f"/{tensor.name}".endswith(f"/{name}")), key=len, default="")

    return tuple(tensor for tensor in tensors if owner(tensor) == parameter)


@dataclass(frozen=True)
class UpdateRow:
    """One line of the resolved update scheme."""

    parameter: str
    fraction: float
    why: str


@dataclass(frozen=True)
class Update:
    """The resolved update scheme."""

    scheme: str
    table: tuple[UpdateRow, ...]


@dataclass(frozen=True)
class RunningRate:
    """A learning rate that the program computes itself; a step's input `learning_rate` multiplies it.

    Attributes:
        description: in words.
        zero_from: the number of the step (0, 1, ...) from which on no update changes anything; None where that is
            never, or not known.
        counter: the state tensor [1] that counts these steps; None where `zero_from` needs none.
    """

    description: str
    zero_from: int | None = None
    counter: str | None = None


@dataclass(frozen=True)
class Manifest:
    """What a program says about itself.

    Attributes:
        graph_hash: sha256 of the operators, constants, built weights and classes of this very program.
        state: `variables` (the runtime keeps the state), `stateless` (it is passed in and out) or `split` (so too: a
            step is calls of `gradients` and one of `apply`, which may run on different engines).
        batch: rows of one step.
        micro_batch: rows of one call, `batch` where all come at once. Else a step is a call of `accumulate` for each
            micro-batch, with weights that sum to one over the whole step, and one of `apply`. Of `gradients` the caller
            adds up what it gives, each by its share of the weight of the whole step.
        loss: its name, or that of each output which has one.
        costs: predicted; see `converter.backend.costs.costs`.
        labels: names of the classes, in order.
        labelled: the outputs whose classes these are; none where the state itself names the classes, or an older
            Pocketune built the program.
        preprocessing: how the app makes an input, in terms of its own.
        card: what people are to know of the model, by names as of a model card: `license`, `author`, `source`,
            `description`.
        frozen: element type of the frozen layers where the target gains by it.
        learning_rate: of a step that is given none; None where the rate runs in the program.
        running_rate: the rate that runs in the program, where one does; the input `learning_rate` multiplies it.
        choices: the weights of which chosen channels train.
        loss_scale: what `gradients` gives is this many times the gradient; `apply` takes it so.
        keep_base: weight of a penalty for leaving the base, in the `loss` of a step; `evaluate` gives the loss alone.
        row_clipping: the largest L2 norm of a row's gradient over all trained tensors, to which larger ones are scaled
            down before the mean is taken. None: any.
        certificates: on which engines the step was run, the last time of each.
        target_labels: what the loss takes for each target, by its name; where nothing is said, any numbers.
        poles: operations of the step whose value or slope may be infinite though all that they take is finite, in
            words. Where the runtime keeps the state, the signatures that update it then give `finite`: 0, or NaN where
            something that they wrote is not finite.
        head: the last layer, where the runtime may set it without a gradient; None where not.
        identity: what a saved state belongs to; None where an older Pocketune built the program.
    """

    format: Literal["pocketune/1"]
    name: str
    graph_hash: str
    target: str
    state: Literal["variables", "stateless", "split"]
    batch: int
    micro_batch: int
    loss: str | dict[str, str]
    optimizer: str
    update: Update
    signatures: dict[str, Signature]
    state_tensors: tuple[StateTensor, ...]
    parameters: tuple[ParameterSpec, ...]
    costs: dict[str, float | None]
    labels: tuple[str, ...] | None = None
    labelled: tuple[LabelledOutput, ...] = ()
    preprocessing: dict[str, Any] | None = None
    card: dict[str, str] = field(default_factory=dict)
    frozen: Literal["float32", "int8", "int4", "int4-dynamic", "int4-blockwise", "int4-blockwise-64",
        "int4-blockwise-128", "float16"] = "float32"  # fmt: skip
    learning_rate: float | None = None
    running_rate: RunningRate | None = None
    choices: tuple[ChosenChannels, ...] = ()
    loss_scale: float = 1.0
    keep_base: float = 0.0
    row_clipping: float | None = None
    certificates: tuple[Certificate, ...] = ()
    target_labels: dict[str, TargetLabels] = field(default_factory=dict)
    poles: tuple[str, ...] = ()
    head: ClassHead | None = None
    identity: Identity | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; the order of keys is the order of the fields."""
        said = json.loads(json.dumps(asdict(self)))
        for choice in said["choices"]:
            if choice["product"] is None:  # older readers refuse a field that they do not know
                del choice["product"]
        if not self.labelled:
            del said["labelled"]
        return said

    def to_bytes(self) -> bytes:
        """Return the metadata entry."""
        return json.dumps(self.to_json(), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()

    def is_certified(self, on: str, engine: str, version: str) -> bool:
        """Return whether a program was found right on an engine, in this very version."""
        return any(c.on == on and c.holds(engine, version) for c in self.certificates)

    def choice_of(self, weight: str) -> ChosenChannels | None:
        """Return which channels of a weight train, where they are chosen."""
        return next((choice for choice in self.choices if choice.weight == weight), None)

    def trained_channels(self, choice: ChosenChannels) -> int:
        """Return how many channels of its weight train."""
        return next(t.shape[0] for t in self.state_tensors if t.tensor == choice.indices)

    @property
    def redrawn(self) -> dict[str, ChosenChannels]:
        """The weights that are state because their channels are redrawn, by name."""
        return {choice.weight: choice for choice in self.choices if choice.product is not None}

    def parameter(self, name: str) -> ParameterSpec:
        """Return a trained weight, or one whose channels are redrawn, by its name, which the manifest has."""
        return next(spec for spec in self.parameters if spec.name == name)

    @property
    def accumulates(self) -> bool:
        """Whether the rows of a step come in several calls."""
        return self.micro_batch < self.batch

    @property
    def step(self) -> str:
        """The signature that takes the rows of a step."""
        if self.state == "split":
            return "gradients"
        return "accumulate" if self.accumulates else "train"

    @property
    def updating(self) -> str:
        """The signature that changes the trained weights."""
        return "train" if self.step == "train" else "apply"

    @property
    def step_on_features(self) -> str:
        """The step for what the frozen first layers made of the rows, where the program offers that."""
        return f"{self.step}{ON_FEATURES}"

    @property
    def behind_features(self) -> dict[str, str]:
        """The signatures that the file has on features alone, by their own names: `features` is called before them."""
        if FEATURES not in self.signatures:
            return {}
        named = {name: f"{name}{ON_FEATURES}" for name in (self.step, "evaluate", "infer")}
        return {name: on for name, on in named.items() if on in self.signatures and name not in self.signatures}

    @property
    def stored_step(self) -> str:
        """The signature of the file that makes a step of rows, or of what `features` gives where it has no other."""
        return self.behind_features.get(self.step, self.step)

    @cached_property
    def calls(self) -> dict[str, Signature]:
        """What may be called: the signatures, and those that `features` is called before, by their own names."""
        behind = {
            name: self.signatures[on].behind(self.signatures[FEATURES]) for name, on in self.behind_features.items()
        }
        return {**behind, **self.signatures}

    @property
    def infers(self) -> dict[int, str]:
        """The signatures that give the model's outputs, by the rows that each takes, the fewest first."""
        names = [name for name in self.calls if name == "infer" or rows_to_infer(name)]
        return dict(sorted((self.calls[name].taking("input")[0].shape[0], name) for name in names))

    def by_length(self, signature: str) -> dict[int, str]:
        """Return the signatures that stand for one, by the tokens of a row that each takes, the fewest first.

        Empty for a program of one length.
        """
        named = {name: at_length(name) for name in self.signatures}
        found = {tokens: name for name, (base, tokens) in named.items() if tokens and base == signature}
        if found:
            found[self.signatures[signature].taking("input")[0].shape[1]] = signature
        return dict(sorted(found.items()))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of the rows that it has signatures for, the fewest first; empty where it has one length, or none."""
        return tuple(self.by_length(self.step))

    @property
    def targets(self) -> tuple[TensorSpec, ...]:
        """What the loss compares the outputs with."""
        return self.calls[self.step].taking("target")

    @property
    def losses(self) -> dict[str, str]:
        """The loss of each target that has one of its own, by the target's name."""
        return {TARGET: self.loss} if isinstance(self.loss, str) else {f"{TARGET}/{n}": v for n, v in self.loss.items()}

    @property
    def scales(self) -> dict[str, str]:
        """The state tensor of the scales of each weight in int8, by that of its integers."""
        pieces = [piece for parameter in self.parameters for piece in parameter.pieces]
        return {piece.tensor: piece.scales.tensor for piece in pieces if piece.scales is not None}

    @property
    def state_bytes(self) -> int:
        """Bytes of all state tensors."""
        return sum(prod(t.shape) * np.dtype(t.dtype).itemsize for t in self.state_tensors)
