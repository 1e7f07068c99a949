"""LoRA of a decoder in int4, block by block: memory, tokens a second, beside the bound and PyTorch on the same core.

    .venv/bin/python scripts/bench/decoders/lora.py qwen-0.5b --tokens 256       # builds, trains, prints the ratios
    .venv/bin/python scripts/bench/decoders/lora.py llama2-7b --tokens 64 --steps 1 --no-torch

Weights are random and quantised already, as those of a file would be; what trains are adapters of rank 8 on all
products, by Adam or plain descent. Each measurement is a process of its own on one CPU. Time is the CPU's, as others
may be at work.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
SHAPES: dict[str, dict[str, int]] = {
    "small": {"layers": 4, "width": 512, "heads": 8, "key_heads": 2, "vocabulary": 8192, "hidden": 1376},
    "tiny": {"layers": 3, "width": 256, "heads": 4, "key_heads": 2, "vocabulary": 20_000, "hidden": 512},
    "qwen-0.5b": {"layers": 24, "width": 896, "heads": 14, "key_heads": 2, "vocabulary": 151_936, "hidden": 4864},
    "qwen-1.5b": {"layers": 28, "width": 1536, "heads": 12, "key_heads": 2, "vocabulary": 151_936, "hidden": 8960},
    "llama2-7b": {"layers": 32, "width": 4096, "heads": 32, "key_heads": 32, "vocabulary": 32_000, "hidden": 11_008},
}
RANK = 8
#: Of the matrix whose constant product says what a core does at best: rows, depth, columns.
PRODUCT = (256, 896, 4864)


def main() -> None:
    """Build where no file is given, measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--optimizer", choices=("adam", "lion", "sgd"), default="adam")
    parser.add_argument("--layers", type=int, help="how many; those of the model without it")
    parser.add_argument("--dora", action="store_true", help="the lengths of columns train as well")
    parser.add_argument("--block", type=int, help="numbers of a row that share a scale; all without it")
    parser.add_argument("--file", type=Path, help="the program; it is built where there is none")
    parser.add_argument("--limit", type=int, help="megabytes of anonymous memory that the training process may have")
    parser.add_argument("--torch", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(PARTS[args.part](args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        args.file = args.file or Path(folder) / f"{args.shape}.tflite"
        found: dict[str, Any] = {"shape": args.shape, "tokens": args.tokens}
        if not args.file.exists():
            found["build"] = _apart(args, "build")
        for part in ("train", "product", *(["torch"] if args.torch else [])):
            found[part] = _apart(args, part)
    found["ratios"] = _ratios(args, found)
    print(json.dumps(found, indent=1))


def _apart(args: argparse.Namespace, part: str) -> Any:
    """Return what a process of its own measures."""
    command = [
        sys.executable,
        __file__,
        args.shape,
        "--tokens",
        args.tokens,
        "--steps",
        args.steps,
        "--optimizer",
        args.optimizer,
        "--file",
        args.file,
    ]
    command += ["--dora"] * args.dora
    for option in ("block", "limit", "layers"):
        command += [f"--{option}", getattr(args, option)] if getattr(args, option) else []
    command += ["--part", part]
    done = subprocess.run(list(map(str, command)), env=environment(), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return {"error": f"exit status {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def environment() -> dict[str, str]:
    """Return the variables of a process that is measured: one thread, and large blocks go back when they are freed."""
    threads = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
    heap = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}
    return {**os.environ, **threads, **heap, "PYTHONPATH": os.fspath(ROOT)}


def _ratios(args: argparse.Namespace, found: dict[str, Any]) -> dict[str, float]:
    """Return how near the step is to the bound, and by how much it is quicker than PyTorch's."""
    if "error" in found["train"]:
        return {}
    seconds = found["train"]["seconds"]
    bound = useful_flops(shape_of(args), args.tokens) / found["product"]["flops_per_second"]
    ratios = {"of_bound": bound / seconds, "tokens_per_second": args.tokens / seconds}
    if "error" not in found.get("torch", {"error": ""}):
        ratios["over_torch"] = found["torch"]["seconds"] / seconds
    return ratios


def shape_of(args: argparse.Namespace) -> dict[str, int]:
    """Return the sizes of the decoder."""
    return SHAPES[args.shape] | ({"layers": args.layers} if args.layers else {})


def useful_flops(shape: dict[str, int], tokens: int) -> float:
    """Return the operations of a step: frozen products forward, forward again and backward, the head's once less."""
    each = shape["width"] // shape["heads"] * shape["key_heads"]
    matrices = shape["width"] * (2 * shape["width"] + 2 * each + 3 * shape["hidden"])
    attention = 2 * tokens * shape["width"] // 2  # what a causal mask leaves of two products of activations
    layers = shape["layers"] * (3 * matrices + 4 * attention)
    return 2.0 * tokens * (layers + 2 * shape["width"] * shape["vocabulary"])


def model_of(args: argparse.Namespace) -> Any:
    """Return the decoder, whose weights are drawn and quantised already, a piece of them when it is asked for."""
    import jax

    import jax_frontend
    from converter.ir import INT4, LazyArray, StoredIntegers
    from examples import llama

    # A prime: rows of a width lie elsewhere in it each time, so that no piece of a matrix is stored as another one.
    some = np.random.default_rng(0).integers(-7, 8, 4_194_301).astype(np.int8)

    class Drawn(LazyArray):
        """Random integers, the same block of them again and again from another place, and one scale."""

        def __init__(self, shape: tuple[int, ...], number: int) -> None:
            self.shape, self.dtype, self._number = shape, np.dtype(np.float32), number
            self._scale = np.float32(0.23 / np.sqrt(min(shape)))

        def _integers(self, start: int, stop: int) -> np.ndarray:
            first = (start * self.shape[1] + self._number * 1_000_003) % len(some)
            return np.resize(np.roll(some, -first), (stop - start, self.shape[1]))

        def rows(self, start: int, stop: int) -> np.ndarray:
            return self._integers(start, stop).astype(np.float32) * self._scale

        def integers(self) -> StoredIntegers:
            blocks = self.shape[1] // args.block if args.block else 1

            def rows(start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
                scales = np.full((stop - start, blocks), self._scale, np.float16)
                return self._integers(start, stop).astype(INT4), scales

            return StoredIntegers(INT4, blocks, np.dtype(np.float16), rows)

    model = llama.build(**shape_of(args), length=args.tokens, seed=None)
    leaves, tree = jax.tree_util.tree_flatten(model.params)
    filled = [Drawn(w.shape, i) if isinstance(w, jax.ShapeDtypeStruct) else w for i, w in enumerate(leaves)]
    params = jax.tree_util.tree_unflatten(tree, filled)
    return jax_frontend.Model(model.apply, params, model.inputs, model.layers, name=args.shape)


def build(args: argparse.Namespace) -> dict[str, float]:
    """Write the program; return seconds, and the most memory that the compiler had, in MB, and with pages of files."""
    import optax

    import converter

    model = model_of(args)
    lora = converter.LoRA(RANK, alpha=2 * RANK, dora=args.dora)
    begin, over, anonymous = time.process_time(), threading.Event(), [0.0]

    def watch() -> None:
        while not over.wait(0.05):
            anonymous[0] = max(anonymous[0], resident("RssAnon"))

    threading.Thread(target=watch, daemon=True).start()
    program = converter.build(
        model,
        loss="next_token",
        batch=1,
        optimizer=getattr(optax, args.optimizer)(1e-3),
        update={"*": 0, "layers/*/attention/*": lora, "layers/*/ffn/*": lora},
        frozen="int4-blockwise" if args.block else "int4",
        blocks="on",
        signatures=("train",),
        target="litert-2/x86-64",
        check=False,
    )
    program.write(args.file)
    over.set()
    seconds, peak = time.process_time() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    costs = {name: program.costs[name] / 1e6 for name in program.costs if name.endswith("_bytes")}
    memory = {"anonymous": anonymous[0], "peak": peak}
    return {"seconds": seconds, **memory, "file": args.file.stat().st_size / 1e6, **costs}


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Return seconds of a step, losses, and memory in MB: anonymous, before and at its peak, and pages of the file."""
    from converter.runtime import TrainingSession

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    if args.limit:
        resource.setrlimit(resource.RLIMIT_DATA, (args.limit * 1_000_000, args.limit * 1_000_000))
    before = resident("RssAnon")
    x = np.random.default_rng(0).integers(0, SHAPES[args.shape]["vocabulary"], (1, args.tokens + 1)).astype(np.int32)
    losses, seconds = [], []
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that from here on
    with TrainingSession(args.file) as session:
        for _ in range(args.steps):
            begin = time.process_time()
            losses.append(float(session.train(x[:, :-1], x[:, 1:])))
            seconds.append(time.process_time() - begin)
        file = resident("RssFile")
        found = {"anonymous": resident("VmHWM") - file, "before": before, "file": file}
    return {"seconds": min(seconds), "losses": losses, **found}


def resident(what: str) -> float:
    """Return a line of this process' status in MB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{what}:"))
    return int(line.split()[1]) / 1e3


def product(args: argparse.Namespace) -> dict[str, float]:
    """Return the operations a second of a large product with a constant in the stock interpreter."""
    from converter.backend import builtins as tfl
    from converter.backend.emit.emit import Subgraph, emit
    from converter.ir import Builder, TensorType
    from converter.support.litert import Interpreter

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    rows, depth, columns = PRODUCT
    b = Builder()
    x = b.input("x", TensorType((rows, depth)))
    b.graph.outputs["y"] = b(tfl.FullyConnected(), x, b.constant(np.ones((columns, depth), np.float32)))
    runner = Interpreter(model_content=emit([Subgraph("main", b.graph)], {}, ""), num_threads=1).get_signature_runner()
    times = []
    for _ in range(20):
        begin = time.process_time()
        runner(x=np.ones((rows, depth), np.float32))
        times.append(time.process_time() - begin)
    return {"flops_per_second": 2 * rows * depth * columns / min(times)}


def torch(args: argparse.Namespace) -> dict[str, float]:
    """Return seconds of a step of the same adapters in PyTorch, with checkpointing, and its memory in MB."""
    from lora_torch import step_of

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    step = step_of(shape_of(args), args.tokens, RANK)
    seconds = []
    for _ in range(args.steps):
        begin = time.process_time()
        step()
        seconds.append(time.process_time() - begin)
    return {"seconds": min(seconds), "anonymous": resident("RssAnon"), "peak": resident("VmHWM")}


PARTS = {"build": build, "train": train, "product": product, "torch": torch}

if __name__ == "__main__":
    main()
