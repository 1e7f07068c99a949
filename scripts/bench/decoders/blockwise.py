"""Ways to run a training step block by block on stock LiteRT: memory, time a step and time to open of each.

    .venv/bin/python scripts/bench/decoders/blockwise.py                       # all shapes, forms and ways; 20 minutes
    .venv/bin/python scripts/bench/decoders/blockwise.py --shapes qwen-0.5b --forms int4 --ways signatures interpreters

A block is a decoder's or an encoder's, with LoRA of rank 8 on all of its products; its signatures are `forward` and
`backward` (its forward again, from the kept input; cotangents of the input and gradients of the adapters). A step runs
all forwards and, in the other order, all backwards; embedding, head and update are left out, as they are the same in
each way. Each measurement is a process of its own, pinned to one CPU.

Ways:
    signatures    one interpreter of one file; a pair of signatures for each block
    interpreters  a file for each block, whose interpreter is opened for a call and closed behind it
    kept          a file for each block, whose interpreters stay open
    arguments     one interpreter; one pair of signatures, which takes the weights of a block as inputs
    cache         CompiledModel of one file with XNNPACK's weight cache, a pair of signatures for each block
    buffers       CompiledModel of one pair of signatures, inputs in buffers of the host's memory
    whole         one interpreter; one signature with the forwards and backwards of all blocks, one after the other
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_frontend
from converter.backend import builtins as tfl
from converter.backend.emit.emit import Subgraph, draft
from converter.backend.lowering.context import Lowering
from converter.backend.lowering.rules.linear import LARGEST_UNPACKED
from converter.backend.lowering.state import with_own_results
from converter.backend.schedule import numbering
from converter.backend.stages import in_order, to_builtins
from converter.backend.targets import target as find_target
from converter.ir import INT4, INT8, Builder, Graph, Node, TensorType, Value, ops
from converter.ir.rewrite import Rewriter, rewrite
from converter.passes import eliminate_dead_code
from converter.passes.autodiff import pull_back
from converter.passes.canonical import canonicalize, specialize
from converter.passes.idioms import with_idioms
from converter.program.flatbuffer.schema import in_pairs
from converter.support.errors import UnsupportedError

TARGET = find_target("litert-2/x86-64")
INTEGERS = {"int8": INT8, "int4": INT4}
FORMS = ("float32", *INTEGERS)
WAYS = ("signatures", "interpreters", "kept", "arguments", "cache", "buffers", "whole")
#: Of the adapters.
RANK = 8


@dataclass(frozen=True)
class Shape:
    """The blocks of a net; `gated` as in LLaMA, causal, else an encoder's with GELU."""

    layers: int
    width: int
    hidden: int
    heads: int
    key_heads: int
    tokens: int
    gated: bool

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of each weight of a block."""
        each = self.width // self.heads * self.key_heads
        names = {"q": (self.width, self.width), "k": (each, self.width), "v": (each, self.width)}
        names |= {"o": (self.width, self.width), "up": (self.hidden, self.width), "down": (self.width, self.hidden)}
        return names | ({"gate": (self.hidden, self.width)} if self.gated else {})


SHAPES = {
    "qwen-0.5b": Shape(24, 896, 4864, 14, 2, 256, True),
    "encoder-12x768": Shape(12, 768, 3072, 12, 12, 256, False),
    "small": Shape(3, 128, 256, 4, 2, 32, True),
}


def model_of(shape: Shape) -> jax_frontend.Model:
    """Return (params, x) -> y of a block in JAX; of its weights the shapes."""

    def norm(x: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)

    def block(params: Any, x: Any) -> Any:
        def dense(x: Any, name: str) -> Any:
            return x @ params["w"][name] * params["s"][name] + (x @ params["a"][name]) @ params["b"][name]

        groups, each = shape.heads // shape.key_heads, shape.width // shape.heads
        h = norm(x)
        q = dense(h, "q").reshape(1, shape.tokens, shape.key_heads, groups, each)
        k, v = (dense(h, n).reshape(1, shape.tokens, shape.key_heads, each) for n in "kv")
        scores = jnp.einsum("bqkgd,bskd->bkgqs", q, k) / np.float32(np.sqrt(each))
        if shape.gated:
            scores = jnp.where(np.tril(np.ones((shape.tokens, shape.tokens), bool)), scores, -1e9)
        mixed = jnp.einsum("bkgqs,bskd->bqkgd", jax.nn.softmax(scores), v).reshape(1, shape.tokens, shape.width)
        x = x + dense(mixed, "o")
        h = norm(x)
        inside = jax.nn.silu(dense(h, "gate")) * dense(h, "up") if shape.gated else jax.nn.gelu(dense(h, "up"))
        return x + dense(inside, "down")

    def typed(*dims: int) -> Any:
        return jax.ShapeDtypeStruct(dims, np.float32)

    matrices = shape.matrices()
    params = {
        "w": {name: typed(i, o) for name, (o, i) in matrices.items()},
        "s": {name: typed(o) for name, (o, _) in matrices.items()},
        "a": {name: typed(i, RANK) for name, (_, i) in matrices.items()},
        "b": {name: typed(RANK, o) for name, (o, _) in matrices.items()},
    }
    return jax_frontend.Model(block, params, [typed(1, shape.tokens, shape.width)])


def graphs_of(shape: Shape, form: str, separate: bool, flat: bool = False) -> dict[str, Graph]:
    """Return the semantic `forward` and `backward` of a block; weights (`w/<name>`) and adapters are inputs.

    `separate`: matrices of integers come in pieces, one a product. `flat`: as vectors, which is all that memory can be.
    """
    traced = canonicalize(with_idioms(jax_frontend.trace(model_of(shape), 1)))
    names = {value: parameter.name for value, parameter in traced.parameters.items()}
    stored: dict[Value, list[Value]] = {}
    for value, name in names.items():
        if form != "float32" and name.startswith("w/"):
            columns, rows = value.shape
            most = max(1, LARGEST_UNPACKED // columns) if separate else rows
            pieces = [TensorType((min(most, rows - i), columns), INTEGERS[form]) for i in range(0, rows, most)]
            if flat:
                pieces = [type.with_shape((type.size,)) for type in pieces]
            stored[value] = [Value(type, f"{name}/{i}" if separate else name) for i, type in enumerate(pieces)]
    scales = {value: np.full(value.shape, 1e-2, np.float32) for value, name in names.items() if name.startswith("s/")}
    traced.inputs += [v for value in names if value not in scales for v in stored.get(value, [value])]
    traced.constants |= scales
    traced.parameters = {}

    def contracted_as_integers(b: Rewriter, node: Node) -> Value | None:
        if not isinstance(node.op, ops.MatMul) or node.inputs[1] not in stored:
            return None
        columns = node.inputs[1].shape[0]
        pieces = [b.reshape(v, (v.type.size // columns, columns)) for v in stored[node.inputs[1]]]
        parts = [b(ops.CastMatMul(adj_y=True), node.inputs[0], piece) for piece in pieces]
        return parts[0] if len(parts) == 1 else b(ops.Concat(2), *parts)

    forward = rewrite(traced, contracted_as_integers)
    (y,) = forward.outputs.values()
    b = Builder(forward.copy())
    dy = b.input("dy", y.type)
    adapters = [value for value in forward.inputs if value.name[:2] in ("a/", "b/")]
    backward, found = pull_back(b.graph, {y: dy}, [*forward.inputs[:1], *adapters])
    backward.outputs = {f"d/{value.name}": cotangent for value, cotangent in found.items()}
    return {"forward": forward, "backward": backward}


def weights_of(shape: Shape, form: str, block: int) -> dict[str, np.ndarray]:
    """Return random weights of a block by name, as its graphs have them."""
    rng = np.random.default_rng(block)
    if form == "float32":
        made = {
            n: rng.standard_normal((i, o), np.float32) / np.float32(np.sqrt(i))
            for n, (o, i) in shape.matrices().items()
        }
    else:
        made = {n: rng.integers(-7, 8, of).astype(INTEGERS[form]) for n, of in shape.matrices().items()}
    return {f"w/{name}": array for name, array in made.items()}


def lowered(graph: Graph, weights: Mapping[str, np.ndarray]) -> Graph:
    """Return a graph of builtins in which these weights are constants."""
    known = graph.copy()
    known.constants |= {value: weights[value.name] for value in graph.inputs if value.name in weights}
    known.inputs = [value for value in graph.inputs if value.name not in weights]
    return with_own_results(in_order(to_builtins(specialize(eliminate_dead_code(known)), TARGET), TARGET))


def one_after_another(shape: Shape, graphs: Mapping[str, Graph], form: str) -> Graph:
    """Return the step of all blocks as one graph of builtins, in order; adapters are inputs `<name>_<block>`."""
    c = Lowering(Graph(), TARGET)
    forward, backward = graphs["forward"], graphs["backward"]
    kept = [c.input("x", next(v.type for v in forward.inputs if v.name == "x"))]
    own: list[dict[str, Value]] = []
    for block in range(shape.layers):
        names = {v.name: v.type for v in forward.inputs if v.name[:2] in ("a/", "b/")}
        own.append({name: c.input(f"{name}_{block}", type) for name, type in names.items()})
        called = lowered(forward, weights_of(shape, form, block))
        kept.append(c.inline(called, [{"x": kept[-1], **own[-1]}[v.name] for v in called.inputs])["output"])
    cotangent = c(tfl.Mul(), kept.pop(), 1e-3)
    for block in reversed(range(shape.layers)):
        called = lowered(backward, weights_of(shape, form, block))
        given = {"x": kept.pop(), "dy": cotangent, **own[block]}
        made = c.inline(called, [given[v.name] for v in called.inputs])
        cotangent = made.pop("d/x")
        c.graph.outputs |= {f"{name}_{block}": value for name, value in made.items()}
    c.graph.outputs["d/x"] = cotangent
    return with_own_results(c.graph)


def file_of(graphs: Mapping[str, Graph]) -> bytes:
    """Return a file with these signatures."""
    signatures = [Subgraph(name, graph) for name, graph in graphs.items()]
    return draft(signatures, {}, "block-wise", in_order=True, numbered=lambda g: numbering(g, TARGET.lanes)).file()


def as_stored(array: np.ndarray) -> np.ndarray:
    """Return the bytes of a weight, two int4 a byte."""
    flat = array.reshape(-1).view(np.uint8)
    return in_pairs(flat) if array.dtype == INT4 else flat


def write_files(shape: Shape, form: str, way: str, folder: Path) -> None:
    """Write what a way opens: `all.tflite`, or `<block>.tflite`; weights that are arguments go into `<block>.bin`."""
    separate = way in ("arguments", "buffers")
    graphs = graphs_of(shape, form, separate, way == "buffers")
    given = {value.name: list(value.shape) for value in graphs["forward"].inputs}
    adapters = {name: dims for name, dims in given.items() if name[:2] in ("a/", "b/")}
    (folder / "shape.json").write_text(json.dumps({"x": given["x"], "layers": shape.layers, "adapters": adapters}))
    whole = {name: lowered(graph, {}) for name, graph in graphs.items()} if separate else {}
    if way == "whole":
        (folder / "all.tflite").write_bytes(file_of({"step": one_after_another(shape, graphs, form)}))
        return
    for block in range(shape.layers):
        weights = weights_of(shape, form, block)
        if separate:
            write_separately(weights, form, folder, block)
            continue
        own = {f"{name}_{block}": lowered(graph, weights) for name, graph in graphs.items()}
        if way in ("interpreters", "kept"):
            (folder / f"{block}.tflite").write_bytes(file_of(own))
        else:
            whole |= own
    if whole:
        (folder / "all.tflite").write_bytes(file_of(whole))


def write_separately(weights: Mapping[str, np.ndarray], form: str, folder: Path, block: int) -> None:
    """Write the weights of a block as a file of their own, each at a multiple of 64 bytes, and where each lies."""
    places, at = [], 0
    with (folder / f"{block}.bin").open("wb") as file:
        for name, array in weights.items():
            most = len(array) if form == "float32" else max(1, LARGEST_UNPACKED // array.shape[1])
            for number, begin in enumerate(range(0, len(array), most)):
                piece = array[begin : begin + most]
                data = as_stored(piece)
                kind, dims = ("int8", [data.size]) if form == "int4" else (form, list(piece.shape))
                places.append((name if form == "float32" else f"{name}/{number}", at, data.size, kind, dims))
                file.write(data.tobytes() + bytes(-data.size % 64))
                at = file.tell()
    (folder / "weights.json").write_text(json.dumps(places))


def measured(folder: Path, way: str, steps: int) -> dict[str, Any]:
    """Return what a run says, or the end of what it complained of."""
    run = Path(__file__).with_name("blockwise_run.py")
    command = [sys.executable, str(run), str(folder), way, str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr.strip().splitlines()[-1:]}


def main() -> None:
    """Print a row for each shape, form and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["qwen-0.5b", "encoder-12x768"])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    print("| shape | weights | way | anonymous, MB | file, MB | open, s | step, CPU s | gradients |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in options.shapes:
        for form in options.forms:
            for way in options.ways:
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        write_files(SHAPES[name], form, way, Path(folder))
                        found = measured(Path(folder), way, options.steps)
                    except UnsupportedError as error:
                        found = {"error": str(error).split(";")[0]}
                print(f"| {name} | {form} | {way} | {row(found)} |", flush=True)


def row(found: Mapping[str, Any]) -> str:
    """Return a row's figures."""
    if "error" in found:
        return f"{found['error']} | | | |"
    sizes = " | ".join(f"{found[key] / 1e6:.0f}" for key in ("anonymous", "file"))
    return f"{sizes} | {found['open']:.2f} | {found['step']:.2f} | {found['gradients']:.7g}"


if __name__ == "__main__":
    main()
