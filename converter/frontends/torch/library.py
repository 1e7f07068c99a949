"""PyTorch as the library that a model is trained with: its losses, optimizers, and fixed parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from converter.frontends.source import Library, Source
from converter.frontends.torch.losses.recognition import is_loss
from converter.frontends.torch.losses.taken import loss_of, of_classes
from converter.frontends.torch.optimizers import is_optimizer, optimized, read_optimizer
from converter.ir import Graph, Value, ops, reachable
from converter.support.notes import Note
from converter.training.losses import Loss
from converter.training.optim.foreign import ForeignOptimizer


@dataclass(frozen=True)
class TorchLibrary(Library):
    """PyTorch, which knows the parameters of a module.

    Attributes:
        names: of its parameters by the `id` of what an optimizer has of them.
    """

    title: ClassVar[str] = "PyTorch"
    names: Mapping[int, str] = field(default_factory=dict)

    def loss(self, loss: Any, outputs: Mapping[str, Value], targets: Any, own: bool) -> Loss | None:
        return loss_of(loss, outputs, targets) if is_loss(loss, own) else None

    def of_classes(self, loss: Any, before: int, classes: int) -> Any:
        return of_classes(loss, before, classes) if is_loss(loss) else loss

    def reads(self, optimizer: Any) -> bool:
        return is_optimizer(optimizer)

    def optimizer(self, optimizer: Any) -> ForeignOptimizer:
        return read_optimizer(optimizer, self.names)

    def as_trained(self, source: Source, optimizer: Any) -> Source:
        """Return a model with all fixed that PyTorch leaves as it is, and notes that say so.

        That is what no output depends on, what gets no gradient as it stands under `torch.no_grad` or `detach()`, and
        what the optimizer does not have.
        """
        graph = source.graph.copy()
        needed = reachable(graph, graph.outputs.values())
        unused = {p.name for v, p in graph.parameters.items() if p.trainable and v not in needed}
        moved_to = _with_cotangents(graph)
        stopped = {p.name for v, p in graph.parameters.items() if p.trainable and v not in moved_to} - unused
        left: set[str] = set()
        if optimizer is not None:
            moved = optimized(optimizer, self.names)
            left = {p.name for p in graph.parameters.values() if p.trainable and p.name not in moved}
        graph.parameters = {
            v: replace(p, trainable=p.trainable and p.name not in left | stopped, idle=p.idle or p.name in unused)
            for v, p in graph.parameters.items()
        }
        notes = [Note(name, "fixed", "the optimizer does not have it") for name in sorted(left)]
        notes += [Note(name, "fixed", "no output depends on it") for name in sorted(unused - left)]
        notes += [
            Note(name, "fixed", "no gradient reaches it (torch.no_grad, detach())") for name in sorted(stopped - left)
        ]
        return replace(source, graph=graph, notes=[*source.notes, *notes])


def _with_cotangents(graph: Graph) -> set[Value]:
    """Return the values that cotangents of the outputs reach, integers and what has a gradient of 0 included."""
    reached = set(graph.outputs.values())
    for node in reversed(graph.nodes):
        stops = isinstance(node.op, ops.CustomGradient) and not node.op.backward.outputs
        if not stops and not reached.isdisjoint(node.outputs):
            reached.update(node.inputs)
    return reached
