"""Nets of torchvision, timm, transformers and by hand: ten steps of each by PyTorch and by a program.

    python -m scripts.torch.sweep torchvision|timm|transformers|own|others [--ways full/adamw,sparse/sgd] [NAME ...]

Needs `scripts/torch/install .venv/bin/python nets`. Each net trains by SGD with momentum and by AdamW, whole (batch
normalization by the batch) and by the scheme `sparse` (by the moving statistics); prints a line each, and the sum. What
is wrong with the first draw of weights is tried with a second.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pocketune
from converter.support.errors import PocketuneError
from scripts.arguments import parser
from scripts.torch.steps import Task, by_program, by_torch, doubled, faults, flipped

STEPS = 10
#: Of last bits, where two of them do not explain a difference.
MORE_DRAWS = 8
#: What each net is trained by: the scheme, whether batch normalization trains, and the optimizer.
WAYS: list[tuple[str, bool, str, Callable[[Any], torch.optim.Optimizer]]] = [
    ("full", True, "sgd", partial(torch.optim.SGD, lr=1e-3, momentum=0.9)),
    ("full", True, "adamw", partial(torch.optim.AdamW, lr=1e-4)),
    ("sparse", False, "sgd", partial(torch.optim.SGD, lr=1e-3, momentum=0.9)),
    ("sparse", False, "adamw", partial(torch.optim.AdamW, lr=1e-4)),
]
_RANDOM = (torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.AlphaDropout)


def without_draws(module: torch.nn.Module, train: bool) -> torch.nn.Module:
    """Return the module with all that is random off, its batch normalization in the mode of training or not."""
    module.eval()
    for layer in module.modules():
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
            layer.train(train)
        elif hasattr(layer, "attention_bias_cache"):  # LeViT's, of a graph that is gone by the next step
            layer.training = True
    return module


def has_batch_norm(module: torch.nn.Module) -> bool:
    """Return whether there is a layer whose statistics a step may take of the batch."""
    return any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in module.modules())


def tried(
    make: Callable[[], tuple[torch.nn.Module, Task]], ways: Collection[str] = (), seed: int = 0
) -> Iterator[tuple[str, list[str]]]:
    """Yield for each way, or some, what is wrong, nothing where all is well; a refusal begins with `refused`."""
    for scheme, train, name, optimizer in WAYS:
        if ways and f"{scheme}/{name}" not in ways:
            continue
        torch.manual_seed(seed)
        module, task = make()
        train = train and has_batch_norm(module)
        without_draws(module, train)
        yield f"{scheme}/{name}", _wrong(module, task, scheme, train, optimizer)


def _wrong(module: Any, task: Task, scheme: str, train: bool, optimizer: Any) -> list[str]:
    rows = task.y.shape[0]
    try:
        from converter.frontends import torch as torch_frontend

        program = pocketune.build(
            torch_frontend.Model(module, task.inputs, task.outputs),
            loss=task.loss,
            optimizer=optimizer([p for p in module.parameters() if p.requires_grad]),
            batch=rows,
            update=scheme,
            batch_norm="train" if train else "fixed",
            check=False,
        )
    except PocketuneError as refusal:
        return [f"refused: {refusal}"]
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        ours, inferred = by_program(program, Path(folder), task, STEPS)
    names = [name for name in ours.weights if not name.endswith(("running_mean", "running_var", "batches_tracked"))]
    try:
        theirs = by_torch(module, task, optimizer, names, STEPS)
    except RuntimeError as error:  # a module may keep what it computed, with a graph that is gone by the next step
        return [f"refused by PyTorch itself: {error}"]
    others = [by_torch(*flipped(module, task, draw), optimizer, names, STEPS) for draw in range(2)]
    with contextlib.suppress(RuntimeError):  # a module may make tensors of float32 itself
        others.append(by_torch(*doubled(module, task), optimizer, names, STEPS))
    found = faults(ours, theirs, others, before)
    if found:  # two draws may miss what rounding does
        others += [by_torch(*flipped(module, task, draw), optimizer, names, STEPS) for draw in range(2, MORE_DRAWS)]
        with torch.backends.mkldnn.flags(enabled=False):  # other kernels of its own, which add up in another order
            others.append(by_torch(module, task, optimizer, names, STEPS))
        found = faults(ours, theirs, others, before)
    with torch.no_grad():
        expected = task.output(module.eval()).numpy()
    scale = max(float(np.abs(expected).max()), 1.0)
    got = next(iter(inferred.values())) if isinstance(inferred, dict) else inferred
    if not np.abs(got - expected).max() <= 1e-4 * scale:
        found.insert(0, f"infers {np.abs(got - expected).max():.1e} off, of {scale:.1e}")
    return found


def main(arguments: list[str]) -> int:
    """Run the nets of a library; the exit status says whether all of them pass."""
    options = parser(__doc__)
    options.add_argument("library", choices=("torchvision", "timm", "transformers", "own", "others"))
    options.add_argument("--ways", type=lambda text: text.split(","), default=[], help="schemes and optimizers")
    options.add_argument("names", nargs="*", metavar="NAME", help="these nets alone")
    given = options.parse_args(arguments)
    library, ways, chosen = given.library, given.ways, given.names
    try:
        nets: dict[str, Callable[[], tuple[torch.nn.Module, Task]]] = importlib.import_module(
            f"scripts.torch.nets.{library}"
        ).NETS
    except ModuleNotFoundError as error:
        print(f"sweep: {error}; scripts/torch/install .venv/bin/python nets", file=sys.stderr)
        return 2
    counts = {"passes": 0, "refused": 0, "WRONG": 0}
    for name, make in nets.items():
        if chosen and name not in chosen:
            continue
        begun, results = time.process_time(), {}
        try:
            results = dict(tried(make, ways))
        except Exception as error:
            results = {"all": [f"{type(error).__name__}: {error}"]}
        bad = {way: wrong for way, wrong in results.items() if wrong}
        again = [way for way, wrong in bad.items() if not wrong[0].startswith("refused") and way != "all"]
        # A number within rounding of a kink may fall on its other side: a fault is one with other weights, too.
        other = {way for way, wrong in tried(make, again, seed=1) if not wrong} if again else set()
        bad = {way: wrong for way, wrong in bad.items() if way not in other}
        refused = bool(bad) and all(wrong[0].startswith("refused") for wrong in bad.values())
        verdict = "passes" if not bad else "refused" if refused else "WRONG"
        counts[verdict] += 1
        remark = f", {' '.join(sorted(other))} with the second draw of weights" if other else ""
        print(f"{verdict:8} {name} ({time.process_time() - begun:.0f} s{remark})", flush=True)
        for way, wrong in bad.items():
            shown = "\n           ".join(line[:600] for line in wrong[:3])
            print(f"         {way}: {shown}", flush=True)
            if refused:
                break
    print(f"{library}: {counts}")
    return 1 if counts["WRONG"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
