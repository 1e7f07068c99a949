"""Option checks: before anything is computed, and with the model before it is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Literal

from converter.backend.targets import Target
from converter.backend.targets import target as find_target
from converter.driver.option_values import whole_names
from converter.driver.options import Options
from converter.frontends.class_room import Room, room_of
from converter.frontends.source import Source
from converter.ir import Value, is_described
from converter.ir.batch_norm import BatchNorm
from converter.program.manifest import FEATURES, ON_FEATURES, rows_to_infer
from converter.program.manifest.schema import LIMITS
from converter.support.errors import UsageError
from converter.support.invocation import command
from converter.training.schemes import UpdateScheme, update_scheme

#: Some forms have an operator for each row.
LARGEST_BATCH = 1 << 16
#: Forms of frozen weights that are proposed for another one.
_NEAREST = ("int4-blockwise", "int4", "float32")


def whole_batch(rows: Any) -> int:
    """Return the rows of a step. Raises UsageError."""
    rows = _whole_number("batch", rows)
    if rows > LARGEST_BATCH:
        raise UsageError(f"batch: a step has at most {LARGEST_BATCH:,} rows, got {rows:,}", page="arguments")
    return rows


def part_of_batch(batch: int, rows: Any) -> int:
    """Return the rows of one call. Raises UsageError when a batch is not made of whole ones."""
    rows = batch if rows is None else _whole_number("micro_batch", rows)
    if batch % rows:
        divisors = ", ".join(str(n) for n in range(1, batch + 1) if not batch % n)
        raise UsageError(
            f"micro_batch {rows} does not divide the batch of {batch}: it can be {divisors}", page="arguments"
        )
    return rows


@dataclass(frozen=True)
class Request:
    """Options with what they come to.

    Attributes:
        options: as they were given, `batch` as an int, of `augment` the word `keras` as what it stands for.
        scheme: what trains.
        target: where the program will run.
        state: where the state is.
        micro_batch: rows that are computed at once, a divisor of the batch.
        recompute: compute the forward pass again in the backward pass, where that takes less memory.

    Raises:
        UsageError: two options do not go together.
    """

    options: Options
    scheme: UpdateScheme
    target: Target
    state: str
    micro_batch: int
    recompute: bool = False

    @staticmethod
    def of(options: Options) -> Request:
        """Return what options come to. Raise UsageError for a scheme, target or batch that there is not."""
        batch = whole_batch(options.batch)
        found = find_target(options.target)
        return Request(
            replace(options, batch=batch),
            update_scheme(options.update),
            found if options.memory_budget is None and not options.recomputes[0] else found.storing_once(),
            found.state if options.state is None else options.state,
            part_of_batch(batch, options.micro_batch),
            recompute=options.recomputes[0],
        )

    def __post_init__(self) -> None:
        if not self.target.keeps(self.state):
            rounds = "rounds weights and optimizer slots to float16"
            given = "has no variables" if self.target.accelerator else "is given the state with each call"
            lacks = given if self.state == "variables" else rounds
            raise UsageError(
                f"state={self.state!r}: the engine of {self.target.name} {lacks}. Leave it out, for "
                f"{self.target.state!r}",
                page="arguments",
            )
        if not self.target.reads(self.options.frozen):
            raise UsageError(_unread(self.options.frozen, self.target), page="arguments")
        if "generate" in self.signatures and not self.target.is_cpu:
            raise UsageError(
                f"the signature 'generate': what it keeps of each layer has five axes, and the engine of "
                f"{self.target.name} takes four. Leave it out, and build a second program for the CPU to ask "
                "(--target litert-2 --signatures train,generate), which restores the states of this one",
                page="arguments",
            )
        if self.rows_to_infer:
            self._check_rows_to_infer()
        if self.options.augment is not None:
            self._check_augment()
        if self.state != "variables" and room_of(self.options.classes) is not None:
            raise UsageError(
                f"classes={self.options.classes!r}: names of later classes are kept in variables: build for a CPU "
                "(--target litert-2), with state='variables'",
                page="arguments",
            )
        if self.options.train_as == "int8":
            self._check_int8()
        if self.options.row_losses == "on" and self.target.is_micro:
            raise UsageError(
                f"row_losses='on' is for sessions that skip rows, and on {self.target.name} none does: leave it out",
                page="arguments",
            )
        behind = [name for name in self.options.signatures if name.endswith(ON_FEATURES)]
        if behind and self.target.is_micro:
            raise UsageError(
                f"the signature {behind[0]!r}: on {self.target.name} frozen weights lie in flash once, and a sketch "
                f"steps on `features` where they are there: ask for {behind[0].removesuffix(ON_FEATURES)!r}",
                page="arguments",
            )
        if self.options.loss_scale != 1 and self.state != "split":
            raise UsageError(
                "loss_scale keeps the gradients of an engine in range that rounds to float16: build with "
                "state='split' (--state split), or leave it out",
                page="arguments",
            )

    @property
    def batch(self) -> int:
        """The rows of a step."""
        return self.options.batch

    @property
    def signatures(self) -> Sequence[str]:
        """What the program offers, by its own name also where it is on features alone."""
        return whole_names(self.options.signatures)

    @property
    def on_features(self) -> frozenset[str]:
        """Which of these take what `features` gives, whether or not they are there for the model's inputs as well."""
        asked = self.options.signatures
        behind = {name for name in self.signatures if name + ON_FEATURES in asked}
        return frozenset(behind | ({"train"} if FEATURES in asked else set()))

    @property
    def on_features_alone(self) -> frozenset[str]:
        """Which of these the file has on features alone."""
        return frozenset(self.signatures) - set(self.options.signatures)

    @property
    def rows_to_infer(self) -> list[int]:
        """For how many rows `infer` is asked for besides; as many as it takes anyway are left out."""
        asked = {rows_to_infer(name) for name in self.signatures} - {None, self.micro_batch}
        return sorted(rows for rows in asked if rows)

    def _check_rows_to_infer(self) -> None:
        rows = self.rows_to_infer[-1]
        if "infer" not in self.signatures:
            raise UsageError(
                f"the signature 'infer_{rows}' is there beside 'infer': ask for that too", page="arguments"
            )
        if rows > LARGEST_BATCH:
            raise UsageError(f"infer_{rows}: a call has at most {LARGEST_BATCH:,} rows", page="arguments")
        if self.options.frozen == "int8":
            raise UsageError(f"infer_{rows} does not go together with frozen='int8': leave one out", page="arguments")

    def _check_augment(self) -> None:
        if not callable(self.options.augment):
            raise UsageError(f"augment is a JAX function (x, key) -> x, not {self.options.augment!r}", page="arguments")
        if "features" in self.signatures:
            raise UsageError(
                "augment makes new samples in each step, and `features` keeps what the first layers give for a sample: "
                "leave one out",
                page="arguments",
            )
        if self.state == "stateless" and self.accumulates:
            raise UsageError(
                "augment counts micro-batches in a variable: leave state='stateless' or micro_batch out",
                page="arguments",
            )

    def _check_int8(self) -> None:
        """Raise UsageError for what trained weights in int8 do not go together with."""
        if self.state != "variables":
            raise UsageError(
                f"train_as='int8' keeps the state in variables, and {self.target.name} has state={self.state!r}: build "
                "for a CPU (--target litert-2) with state='variables', or leave train_as out",
                page="arguments",
            )
        head, classes = self.options.head, self.options.classes
        for asked, what in (
            (head is not None, f"head={head!r}, which sets float32 weights"),
            (room_of(classes) is not None, f"classes={classes!r}, whose layer a session sets"),
        ):
            if asked:
                raise UsageError(f"train_as='int8' does not go together with {what}: leave one out", page="arguments")

    @property
    def accumulates(self) -> bool:
        """Whether the rows of a step come in several calls."""
        return self.micro_batch < self.batch

    @property
    def step(self) -> Literal["train", "accumulate", "gradients"]:
        """The signature that takes the rows of a step."""
        if self.state == "split":
            return "gradients"
        return "accumulate" if self.accumulates else "train"


def _unread(frozen: str, target: Target) -> str:
    """Return why frozen weights of a form are refused for a target, and which are nearest to them there."""
    if target.is_cpu:
        keeps = "keeps the float32 numbers beside it, so nothing would be gained in memory"
        why = keeps if frozen == "float16" else "is not known to read constants of four bits right"
        return f"frozen={frozen!r}: {target.name} {why}. Build for litert-2 (--target litert-2), or leave it out"
    rounds = "rounds no activation, so it would be no quicker"
    why = rounds if frozen == "int4-dynamic" else "is not known to read such weights right"
    nearest = " or ".join(f"frozen={form!r}" for form in _NEAREST if target.reads(form))
    build = "Build for litert-2 (--target litert-2) to have it"
    return f"frozen={frozen!r}: {target.name} {why}. Take {nearest} there. {build}"


def check_dropout(request: Request, drops: bool) -> None:
    """Raises UsageError for what dropout while training does not go together with, and where nothing is dropped."""
    if request.options.dropout != "train":
        return
    if not drops:
        raise UsageError(
            "dropout='train': this model drops nothing that could be kept (nn.Dropout and the like in PyTorch; "
            "dropout, noise and recurrent layers of Keras; dropout of Flax and Equinox, pocketune.dropout in JAX). "
            "Leave it out",
            page="arguments",
        )
    if request.state == "stateless" and request.accumulates:
        raise UsageError(
            "dropout='train' counts micro-batches in a variable: leave state='stateless' or micro_batch out",
            page="arguments",
        )
    if request.options.frozen == "int8":
        raise UsageError("dropout='train' does not go together with frozen='int8': leave one out", page="arguments")


def check_fisher(request: Request, chooses: bool, mixing: str | None) -> None:
    """Raises UsageError where channels are to be weighed and cannot be.

    Args:
        request: all that was asked for.
        chooses: whether there is a weight whose channels are chosen.
        mixing: where rows of a batch influence each other in a step, if they do.
    """
    if "fisher" not in request.signatures:
        return
    if not chooses:
        raise UsageError(
            "the signature 'fisher' weighs the channels of weights with an update rule of Channels, and there are "
            "none: leave it out, or add a rule, for example {'*/kernel': pocketune.Channels(0.25)}",
            page="arguments",
        )
    if mixing is not None:
        raise UsageError(
            f"rows of a batch influence each other ({mixing}), so channels cannot be weighed sample by sample: leave "
            "the signature 'fisher' out",
            page="arguments",
        )


def check_batch_norm(
    request: Request, layers: Sequence[BatchNorm], chosen: Sequence[BatchNorm], adapters: bool
) -> None:
    """Raises UsageError for statistics of the batch in a model without such layers, and for what they do not go with.

    Args:
        request: asks for them.
        layers: those of the model.
        chosen: of these, what takes the statistics of the batch.
        adapters: whether weights have adapters.
    """
    if not layers:
        raise UsageError(
            "batch_norm='train' is for batch normalization layers of Keras, PyTorch and Flax, and this model has none: "
            "leave it out. Of a Flax model pass all variables as params, batch_stats too, with use_running_average; "
            "of another JAX function it is not known which values are moving statistics",
            page="arguments",
        )
    asked = {
        "micro_batch or memory_budget, as the statistics are those of the whole batch": request.accumulates,
        "the signature `features`, which is kept for other batches": "features" in request.signatures,
        "frozen='int8'": request.options.frozen == "int8",
        "LoRA, SkipLoRA or Channels": adapters,
    }
    for what in (what for what, is_asked in asked.items() if is_asked and chosen):
        raise UsageError(f"batch_norm='train' ({chosen[0].layer}) does not go together with {what}", page="arguments")


def check_sizes(source: Source, rows: int) -> None:
    """Raises UsageError where an input or output takes more bytes than a tensor of a program."""
    for value in (*source.graph.inputs, *source.graph.outputs.values()):
        if value.type.nbytes > LIMITS["tensor_bytes"]:
            raise UsageError(
                f"{rows} rows at once are too many: {value.name or 'an output'} takes {value.type.nbytes:,} bytes, "
                f"and a tensor at most {LIMITS['tensor_bytes']:,}. Choose a smaller batch, or a micro_batch of it",
                page="arguments",
            )


def with_own_words(request: Request, source: Source) -> Request:
    """Return the request with the labels and the preprocessing that the model itself names, where none were given.

    What it says on its card stays beside what is given.
    """
    options, words = request.options, source.words
    classes = _classes(source, room_of(options.classes))
    if options.labels is None and words.labels is not None and len(words.labels) in classes:
        options = replace(options, labels=words.labels)
    if options.preprocessing is None and words.preprocessing is not None:
        options = replace(options, preprocessing=words.preprocessing)
    if words.card:
        options = replace(options, card={**words.card, **(options.card or {})})
    return replace(request, options=options)


def _classes(source: Source, room: Room | None) -> list[int]:
    """Return how many classes each output may tell apart. Of a model with room its own."""
    return [room.own] if room is not None else sorted({classes_of(value) for value in source.graph.outputs.values()})


def classes_of(output: Value) -> int:
    """Return how many classes an output may tell apart; a single number tells two."""
    size = output.shape[-1] if len(output.shape) > 1 else 1
    return 2 if size == 1 else size


def check_labels(options: Options, source: Source) -> None:
    """Raises UsageError where no output has as many classes as there are names."""
    labels, classes = options.labels, _classes(source, room_of(options.classes))
    if labels is not None and len(labels) not in classes:
        raise UsageError(
            f"labels names {len(labels)} classes, and the model has {' or '.join(map(str, classes))}: "
            "one name for each, in order",
            page="arguments",
        )


def check_weights(source: Source) -> None:
    """Raises UsageError where parameters are shapes alone: such a model can be planned, not built."""
    parameters = source.graph.parameters.values()
    without = [p.name for p in parameters if p.source is None and is_described(p.model_value)]
    if without:
        raise UsageError(
            f"the parameter {without[0]} has no value: initialise the model, jax.eval_shape gives only shapes. "
            f"`{command('schemes')}` (pocketune.compare_schemes) shows what a model of shapes would cost",
            page="arguments",
        )


def _whole_number(name: str, value: Any) -> int:
    try:
        number = index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise UsageError(f"{name} must be at least 1, a whole number; got {value!r}", page="arguments")
    return number
