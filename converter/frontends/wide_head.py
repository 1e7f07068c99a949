"""A last layer that reads blocks too: what each block of a model reads, pooled, beside its own input (Head2Toe).

Evci et al., Head2Toe: Utilizing Intermediate Representations for Better Transfer Learning, arXiv 2201.03529. There what
is read is chosen by its weights; here all blocks are, or the last ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from converter.frontends.class_room import LastLayer, last_layer, why_no_layer, wider
from converter.frontends.source import Source
from converter.ir import Graph, Node, Value, ops
from converter.ir.rewrite import Rewriter, rewrite
from converter.support.errors import UsageError
from converter.support.notes import Note
from converter.training.batch_dependence import mixing
from converter.training.schemes.choose.adapters import before_head
from converter.training.schemes.pooling import Pooling, pooling_of
from converter.training.schemes.shortcuts import value_read
from converter.training.schemes.structure import members


@dataclass(frozen=True)
class HeadReads:
    """What a last layer reads beside its own input.

    Attributes:
        last: the inputs of so many last blocks; None: of all.
        parts: means of so many parts along each axis of a picture or series.
    """

    last: int | None = None
    parts: int = 1

    def __str__(self) -> str:
        blocks = "blocks" if self.last is None else f"blocks:{self.last}"
        return blocks if self.parts == 1 else f"{blocks}/{self.parts}"


def head_reads_of(text: str | None) -> HeadReads | None:
    """Return what `head_reads="blocks:4/2"` asks for; None where it asks for nothing.

    Raises:
        UsageError: it says something else.
    """
    if text is None:
        return None
    found = re.fullmatch(r"blocks(?::([1-9]\d{0,3}))?(?:/([1-9]\d?))?", text.strip())
    if found is None:
        raise UsageError(
            f"head_reads={text!r}: 'blocks', what each block reads; 'blocks:4', of the last four; 'blocks/2', in means "
            "of 2 x 2 parts of a picture or of 2 of a series; 'blocks:4/2', both",
            page="arguments",
        )
    return HeadReads(int(found[1]) if found[1] else None, int(found[2] or 1))


@dataclass(frozen=True)
class _Tap:
    """What is read of a block."""

    value: Value
    pooling: Pooling


def with_head_reads(source: Source, reads: HeadReads | None) -> Source:
    """Return a model whose last layer reads its blocks too, with weights of 0: it begins as it was.

    Raises:
        UsageError: it ends in no such layer, no block stands before it, or nothing of them can be read.
    """
    if reads is None:
        return source
    graph = source.graph
    layer = last_layer(graph)
    if layer is None:
        raise UsageError(f"head_reads='{reads}': {why_no_layer(graph)}", page="arguments")
    taps, refused = _taps(source, layer, reads)
    if not taps:
        said = "; ".join(refused) or "no block or layer with a kernel stands before the last one"
        whole = "" if reads.parts == 1 else f". '{replace(reads, parts=1)}' reads no parts"
        raise UsageError(f"head_reads='{reads}': nothing is there to read: {said}{whole}", page="arguments")
    wide = _joined(graph, layer, [tap for _, tap in taps])
    kernel = graph.parameters[layer.kernel].name
    notes = [
        Note(kernel, "reads blocks", f"what {name} reads, {tap.pooling}, is an input of the last layer too")
        for name, tap in taps
    ]
    notes += [Note(kernel, "reads blocks", f"but not {problem}") for problem in refused]
    return replace(source, graph=wide, notes=[*source.notes, *notes])


def _taps(source: Source, layer: LastLayer, reads: HeadReads) -> tuple[list[tuple[str, _Tap]], list[str]]:
    """Return what is read, by the block, and why others are not."""
    graph = source.graph
    rows, readers = graph.inputs[0].shape[0], graph.consumers()
    blocks = list(before_head(members(graph, source.blocks))[1].items())
    taps, refused = dict[Value, tuple[str, _Tap]](), list[str]()
    for name, kernels in blocks if reads.last is None else blocks[-reads.last :]:
        read = [(value_read(graph, kernel, readers), kernel) for kernel in kernels]
        value, kernel = next((one for one in read if isinstance(one[0], Value)), read[0])
        pooling = value if isinstance(value, str) else pooling_of(graph, value, layer.product, rows, reads.parts)
        if isinstance(value, str) or isinstance(pooling, str):
            refused.append(f"{name}: {pooling}")
        elif (place := mixing(graph, [value])) is not None:
            refused.append(f"{name}: the rows of a batch are not its first axis: {place}")
        elif value is not layer.product.inputs[0]:
            # The first layer of a block may be none that can be read: what is read then is not what the block reads.
            said = name if kernel is kernels[0] else kernel.layer
            taps.setdefault(value, (said, _Tap(value, pooling)))
    return list(taps.values()), refused


def _joined(graph: Graph, layer: LastLayer, taps: Sequence[_Tap]) -> Graph:
    """Return the graph whose last layer multiplies [its own input, what each tap gives] by a kernel that is wider.

    Before: MatMul(h, kernel).   After: MatMul(Concat(h, pooled x_1, ...), [kernel; zeros]).
    """
    after, rows, product = graph.copy(), graph.inputs[0].shape[0], layer.product

    def read_more(b: Rewriter, node: Node) -> Value | None:
        if node.outputs != product.outputs:
            return None
        pooled = [tap.pooling.current(b).apply(b, b.current(tap.value), rows) for tap in taps]
        joined = b(ops.Concat(1), node.inputs[0], *pooled)
        kernel = wider(b.graph, layer.kernel, 1 - layer.axis, joined.shape[1] - node.inputs[0].shape[1])
        return b(node.op, joined, kernel)

    return rewrite(after, read_more)
