"""`head="class_means"` and room for classes: the last layer that a session may set without a gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from converter.driver.compilation import Compilation
from converter.driver.features.free_classes import check_loss, check_optimizer
from converter.frontends.class_room import LastLayer, Room, last_layer, room_of, why_no_layer
from converter.frontends.class_room import with_room as graph_with_room
from converter.frontends.source import Source
from converter.ir import Graph, Parameter, TensorType, Value, is_described
from converter.ir.evaluate import evaluate
from converter.ir.types import INT32
from converter.program.class_names import TENSOR, written
from converter.program.manifest import ClassHead, updates
from converter.support.errors import UsageError
from converter.training.schemes import cut_frozen_prefix

_MEANS = "head='class_means'"


def with_room(source: Source, room: Room | None) -> Source:
    """Return a model with room for classes that come later, where it is asked for. Raises UsageError."""
    if room is None:
        return source
    if source.file is not None:
        raise UsageError(
            f"classes='{room}': a .tflite file is exported as it is but for its weights, so its last layer has the "
            "classes that it has. Build a Keras, JAX or PyTorch model, or the file with classes=N for all that may be",
            page="arguments",
        )
    layer = last_layer(source.graph)
    made = graph_with_room(source.graph, room)
    assert layer is not None
    held = {*source.regularization.penalties, *source.regularization.constraints}
    if (bias := source.graph.parameters[layer.bias].name) in held:
        raise UsageError(
            f"classes='{room}': a regularizer or constraint holds {bias}, whose numbers say which classes there are: "
            "build the model without it",
            page="arguments",
        )
    return replace(source, graph=made)


def find(c: Compilation) -> Compilation:
    """Say which layer a session may set. Raise UsageError where none is, and it is asked for."""
    room, wants_means = room_of(c.options.classes), c.options.head == "class_means"
    if room is None and not wants_means:
        return c
    layer = last_layer(c.source.graph)
    if layer is None:
        raise UsageError(
            f"{_MEANS}: {why_no_layer(c.source.graph)}",
            page="arguments",
        )
    named = c.source.graph.parameters
    head = ClassHead(
        named[layer.kernel].name,
        named[layer.bias].name,
        layer.axis,
        layer.classes if room is None else room.own,
        None if room is None else TENSOR,
    )
    trained = {row.parameter for row in c.rows if row.fraction == 1}
    if missing := {head.kernel, head.bias} - trained:
        raise UsageError(
            f"{min(missing)} of the last layer does not train whole: {_MEANS} and room for classes need that. "
            "Choose an update that trains it, as 'head' does",
            page="arguments",
        )
    if wants_means and not _reads_features(c, layer, head):
        raise UsageError(
            f"{_MEANS} sets the last layer by what it reads, which is to be kept as features: freeze all others, "
            "update='head'",
            page="arguments",
        )
    _check_slots(c, head, [named[v] for v in (layer.kernel, layer.bias)])
    if room is not None:
        _check_labels(c.options.labels)
        check_loss(c, layer, room)
        check_optimizer(c, head, room)
    return replace(c, head=replace(head, takes_features=wants_means))


def _check_labels(labels: Sequence[str] | None) -> None:
    """Raise UsageError where one is no name of a class: an empty one says that there is room."""
    for label, times in Counter(labels or ()).items():
        if not label.strip() or times > 1:
            raise UsageError(
                f"labels: {label!r} names no class alone; with room for classes each needs a name of its own",
                page="arguments",
            )


def _check_slots(c: Compilation, head: ClassHead, layer: list[Parameter]) -> None:
    """Raise UsageError where a session could not tell slots that copy the weights from slots that begin at 0."""
    built = {p.name: p.model_value for p in layer}
    if any(is_described(array) or array.any() for array in built.values()):
        return
    from converter.training.optim.trace import trace_optimizer

    rng = np.random.default_rng(0)
    drawn = {name: rng.normal(size=array.shape).astype(np.float32) for name, array in built.items()}
    for slot, array in trace_optimizer(c.optimizer, drawn).slots.items():
        if any(np.array_equal(array, values) for values in drawn.values()):
            raise UsageError(
                f"{head.kernel} and {head.bias} of the last layer are built as zeros, and the optimizer keeps copies "
                f"of the weights ({slot}), which a session then cannot tell from slots that begin at 0 where it sets "
                "classes. Give the layer any other weights to begin with, or make room, classes='10+20'",
                page="arguments",
            )


def name_classes(c: Compilation) -> Compilation:
    """Add names to the state, and say what features in integers stand for."""
    if c.head is None:
        return c
    program = c.program
    head = c.head
    if head.takes_features:
        (features,) = program["features"].outputs.values()
        if (quantization := features.type.quantization) is not None:
            head = replace(head, scale=float(quantization.scale), zero_point=int(quantization.zero_point))
    if head.names is not None:
        updating = updates(program)
        layer = last_layer(c.source.graph)
        assert layer is not None
        names = list(c.options.labels or map(str, range(head.own)))
        array = written([*names, *[""] * (layer.classes - head.own)])
        program = program.mapped(lambda name, graph: _with_names(graph, array) if name == updating else graph)
    return replace(c, program=program, head=head)


def _with_names(graph: Graph, array: np.ndarray) -> Graph:
    """Return a graph that keeps one more tensor, which nothing of it reads."""
    after = graph.copy()
    after.parameters[Value(TensorType(array.shape, INT32), TENSOR)] = Parameter(TENSOR, array, kind="slot")
    return after


def _reads_features(c: Compilation, layer: LastLayer, head: ClassHead) -> bool:
    """Return whether what is after the features is that layer alone: seen by what it gives for random features."""
    rest = cut_frozen_prefix(c.graphs.model)[1] if c.graphs.prefix is None else c.graphs.suffix
    weights = {p.name: p for p in rest.weights().values()}
    if len(rest.inputs) != 1 or set(weights) != {head.kernel, head.bias}:
        return False
    rng, (given,) = np.random.default_rng(0), rest.inputs
    width = layer.kernel.shape[1 - head.axis]
    rows = layer.product.output.shape[0]
    if given.type.size != rows * width:
        return False
    # Numbers of about 1 come out, however wide the layer is: those of float32 then differ by rounding alone.
    made = {name: (rng.normal(size=p.model_value.shape) / width**0.5).astype(np.float32) for name, p in weights.items()}
    x = rng.normal(size=given.shape).astype(np.float32)
    stored = {name: p.view.apply(made[name]) for name, p in weights.items()}
    outputs, _ = evaluate(rest, [x], **stored)
    (found,) = outputs.values()
    kernel = made[head.kernel] if head.axis == 1 else made[head.kernel].T
    wanted = x.reshape(rows, width) @ kernel + made[head.bias]
    if layer.link is not None:
        wanted = np.exp(wanted - wanted.max(-1, keepdims=True))
        wanted /= wanted.sum(-1, keepdims=True)
    return found.shape == wanted.shape and bool(np.allclose(found, wanted, rtol=1e-4, atol=1e-5))
