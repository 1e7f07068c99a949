"""Several heads on one backbone in one file: each with signatures, state and manifest of its own, `features` once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.emit.emit import Draft, Subgraph, draft
from converter.driver.assemble import Begun, Parts, put_together
from converter.driver.options import Options
from converter.driver.program import Program
from converter.ir import Graph, Node, Op, Value, nested
from converter.ir.graph import to_text
from converter.program import checksum
from converter.program.flatbuffer.buffers import Buffers
from converter.program.heads import HEADS, NAME, of_entry
from converter.program.manifest import FEATURES, MANIFEST, ON_FEATURES
from converter.support.errors import UsageError
from converter.support.files import Mapped, write_atomically

#: What a head offers: all on features, which no other signature than that holds the frozen layers.
SIGNATURES = (FEATURES, *(f"{name}{ON_FEATURES}" for name in ("train", "evaluate", "infer")))
#: Options on which depends what features hold, or how many rows of them.
_OF_BACKBONE = ("batch", "cut", "frozen", "head_reads", "length", "preprocess", "update")


@dataclass(frozen=True)
class Heads:
    """A file of several training programs on one backbone.

    Attributes:
        data: the `.tflite` file.
        programs: by head, what a program of that head alone would be, but for `data`, which is the file of all:
            `heads.programs["birds"].export_inference(path, state)` takes the model of one head away.
    """

    data: bytes | Mapped = field(repr=False)
    programs: Mapping[str, Program]

    def check(self) -> None:
        """Runs one step of each head in the stock interpreter. Raises NumericError as `Program.check`."""
        for program in self.programs.values():
            program.check()

    def write(self, path: str | os.PathLike) -> Path:
        """Writes the file whole or not at all. Raises UsageError when it cannot be written."""
        write_atomically(path, self.data)
        return Path(path)


def options_of_heads(given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Options]:
    """Return the options of each head.

    Args:
        given: those of all heads; what is a dict by exactly their names is of one head each.
        names: of the heads.

    Raises:
        UsageError: a name is none, or one asks for what a file of several heads has not.
    """
    if len(names) < 2 or not all(isinstance(name, str) and NAME.fullmatch(name) for name in names):
        raise UsageError(
            f"models are two heads or more by name, of letters, digits, dots, - and _: not {list(names)!r}",
            page="arguments",
        )
    if FEATURES in names:
        raise UsageError(f"a head cannot be called {FEATURES!r}, as the frozen layers are: rename it", page="arguments")
    if set(given.get("signatures", SIGNATURES)) not in (set(SIGNATURES), set(Options().signatures)):
        raise UsageError(
            f"signatures: those of a file of several heads are {', '.join(SIGNATURES)}: leave them out",
            page="arguments",
        )
    if given.get("memory_budget") is not None:
        raise UsageError("memory_budget is of one program: leave it out of several heads", page="arguments")
    own = {option: value for option, value in given.items() if isinstance(value, Mapping) and set(value) == set(names)}
    return {
        name: Options(**{**given, **{option: value[name] for option, value in own.items()}, "signatures": SIGNATURES})
        for name in names
    }


def check_heads(parts: Mapping[str, Parts], options: Mapping[str, Options]) -> None:
    """Raise UsageError unless the heads are for variables on a CPU, and their frozen first layers are the same."""
    (first, one), *others = parts.items()
    for name, part in parts.items():
        if part.manifest.state != "variables" or part.is_micro:
            raise UsageError(
                f"{name}: several heads keep their state in variables, on CPUs: build for one (--target litert-2)",
                page="arguments",
            )
    for name, other in others:
        where = _difference(one.graph(FEATURES), other.graph(FEATURES))
        if where is not None:
            raise UsageError(
                f"the heads {first} and {name} have no backbone in common: their frozen first layers differ at "
                f"{where}. {_how_alike(first, options[first], name, options[name])}",
                page="arguments",
            )


def _how_alike(one: str, its: Options, other: str, theirs: Options) -> str:
    """Return what would give two heads the same frozen first layers, as a sentence."""
    asked = [(option, getattr(its, option), getattr(theirs, option)) for option in _OF_BACKBONE]
    differ = [f"{option}={a!r} is of {one} and {option}={b!r} of {other}" for option, a, b in asked if a != b]
    if differ:
        return f"{'; '.join(differ)}: what features hold depends on it, so give both the same"
    if str(its.update).startswith("skip-lora"):
        return (
            f"update={its.update!r} keeps the last layer frozen and its outputs among the features, so heads with "
            "layers of their own do not share them: take update='head'"
        )
    return "Build them of models that share these layers and their weights"


def _difference(one: Graph, other: Graph) -> str | None:
    """Return the layer of the first operator that differs in what it computes or in its constants, None where none."""
    made = [[*graph.inputs, *(v for node in graph.nodes for v in node.outputs)] for graph in (one, other)]
    numbers = [{value: number for number, value in enumerate(values)} for values in made]
    for mine, its in zip(one.nodes, other.nodes, strict=False):
        if _facts(one, numbers[0], mine) != _facts(other, numbers[1], its):
            return mine.origin.layer or mine.op.name
    if len(one.nodes) != len(other.nodes):
        longer = max((one, other), key=lambda graph: len(graph.nodes))
        rest = longer.nodes[min(len(one.nodes), len(other.nodes))]
        return rest.origin.layer or rest.op.name
    ends = [
        ([(v.name, str(v.type)) for v in graph.inputs], [(name, known.get(v)) for name, v in graph.outputs.items()])
        for graph, known in zip((one, other), numbers, strict=True)
    ]
    return None if ends[0] == ends[1] else "what they take or give"


def _facts(graph: Graph, known: Mapping[Value, int], node: Node) -> tuple[Any, ...]:
    """Return what is compared of a node: its operator, its types, and which values or constants it reads."""
    inner = [whole for body in node.op.bodies() for whole in nested(body)]
    op = [(to_text(body), _numbers(body.constants.values())) for body in inner] or repr(node.op)
    read = [known[v] if v in known else _numbers([graph.constants[v]]) for v in node.inputs]
    return node.op.name, op, [str(v.type) for v in (*node.inputs, *node.outputs)], read


def _numbers(arrays: Iterable[np.ndarray]) -> list[str]:
    """Return a digest of each array."""
    return [hashlib.sha256(np.ascontiguousarray(array).view(np.uint8).data).hexdigest() for array in arrays]


def joined(parts: Mapping[str, Parts]) -> Draft:
    """Return the file of all heads but for the order of its bytes: the first one's signatures come first."""
    subgraphs: list[Subgraph] = []
    metadata: dict[str, bytes] = {HEADS: json.dumps(list(parts)).encode(), checksum.ENTRY: checksum.BLANK}
    stored: dict[str, bytes | np.ndarray] = {}
    derived: dict[str, Callable[[Buffers], bytes]] = {}
    (one, *_) = parts.values()
    for head, part in parts.items():
        for subgraph in _of_head(part.subgraphs, head):
            if subgraph.name != FEATURES or subgraph.name not in [known.name for known in subgraphs]:
                subgraphs.append(subgraph)
        metadata |= {of_entry(name, head): data for name, data in part.metadata.items() if name != checksum.ENTRY}
        stored |= {of_entry(name, head): data for name, data in part.stored.items()}
        derived |= {of_entry(name, head): make for name, make in part.derived.items()}
    said = f"Pocketune training program of the heads {', '.join(parts)}"
    in_order = any(part.in_order for part in parts.values())
    return draft(subgraphs, metadata, said, stored, derived, in_order, one.numbered, one.shares)


def heads_of(begun: Mapping[str, Begun], options: Mapping[str, Options]) -> Heads:
    """Return the file of several heads, built by these options. Raises UsageError where they share no backbone."""
    named = {head: one._replace(parts=_named(one.parts, head)) for head, one in begun.items()}
    parts = {head: one.parts for head, one in named.items()}
    check_heads(parts, options)
    data = put_together(joined(parts), [graph for one in named.values() for graph in one.graphs])
    return Heads(data, {head: one.within(data, head) for head, one in named.items()})


def _named(parts: Parts, head: str) -> Parts:
    """Return the parts of a program that is of a head, as its states and memories are, whatever the other heads are."""
    manifest, identity = parts.manifest, parts.manifest.identity
    assert identity is not None

    def own(digest: str) -> str:
        return hashlib.sha256(f"{digest} {head}".encode()).hexdigest()[: len(digest)]

    manifest = replace(
        manifest,
        graph_hash=own(manifest.graph_hash),
        identity=replace(
            identity,
            optimizer=f"{identity.optimizer} of the head {head}",
            forward=own(identity.forward),
            update=own(identity.update),
        ),
    )
    return parts._replace(manifest=manifest, metadata={**parts.metadata, MANIFEST: manifest.to_bytes()})


def _of_head(subgraphs: Sequence[Subgraph], head: str) -> list[Subgraph]:
    """Return the subgraphs of a program as those of a head; `features` is of all heads and keeps its name.

    Variables have the prefix in the bodies of loops too: a name without it there is another variable, which nothing
    has written.
    """
    made: dict[Graph, Graph] = {}

    def own(graph: Graph) -> Graph:
        if graph not in made:
            made[graph] = after = graph.copy()
            after.nodes = [replace(node, op=changed(node.op)) for node in graph.nodes]
        return made[graph]

    def changed(op: Op) -> Op:
        if isinstance(op, tfl.VarHandle):
            return replace(op, variable=f"{head}/{op.variable}")
        if isinstance(op, tfl.CallOnce):
            return replace(op, subgraph=f"{head}/{op.subgraph}")
        bodies = op.bodies()
        return op.with_bodies(*map(own, bodies)) if bodies else op

    return [
        one if one.name == FEATURES else replace(one, name=f"{head}/{one.name}", graph=own(one.graph))
        for one in subgraphs
    ]
