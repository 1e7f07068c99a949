"""Random goals of a training: outputs of a module, a loss as `build` takes it, and what PyTorch computes of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Goal:
    """What a module is trained for.

    Attributes:
        words: what was drawn.
        heads: sizes of the layers that the outputs are made of, by name.
        join: makes the module's outputs of theirs.
        loss: as `build` takes it.
        eager: takes the outputs and y, and gives the loss of the batch.
        y: targets of all rows: a tensor, a dict of them, or None.
        described: `y=` of the build.
    """

    words: str
    heads: Mapping[str, int]
    join: Callable[[dict[str, Any]], Any]
    loss: Any
    eager: Callable[[Any, Any], Any]
    y: Any
    described: Any = None

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """Return the targets, changed."""
        if isinstance(self.y, dict):
            return {name: change(t) for name, t in self.y.items()}
        return None if self.y is None else change(self.y)

    def value(self, outputs: Any, y: Any) -> Any:
        """Return what PyTorch computes, in the type of the outputs."""
        eager, first = self.eager, outputs
        while not isinstance(first, torch.Tensor):
            first = next(iter(first.values() if isinstance(first, dict) else first))
        return (copy.deepcopy(eager).to(first.dtype) if isinstance(eager, nn.Module) else eager)(outputs, y)

    @staticmethod
    def rows(y: Any, rows: slice) -> Any:
        """Return some rows of targets."""
        return {k: v[rows] for k, v in y.items()} if isinstance(y, dict) else None if y is None else y[rows]

    def arrays(self, rows: slice) -> Any:
        """Return the same as a session takes them."""

        def array(tensor: torch.Tensor) -> np.ndarray:
            return (tensor if tensor.is_floating_point() else tensor.int()).numpy()

        y = self.rows(self.y, rows)
        return {k: array(v) for k, v in y.items()} if isinstance(y, dict) else None if y is None else array(y)


def draw_goal(rng: np.random.Generator, count: int) -> Goal:
    """Return a goal for so many rows."""
    return (_single, _single, _of_two, _of_several)[rng.integers(4)](rng, count)


def _numbers(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))


def _labels(rng: np.random.Generator, count: int, classes: int, ignored: int | None = None) -> torch.Tensor:
    y = torch.from_numpy(rng.integers(0, classes, count))
    return y if ignored is None else torch.where(torch.arange(count) % 3 == 1, ignored, y)


def _shares(rng: np.random.Generator, count: int) -> torch.Tensor:
    return torch.from_numpy(rng.dirichlet(np.ones(4), count).astype(np.float32))


def _single(rng: np.random.Generator, count: int) -> Goal:
    weights = torch.tensor([0.5, 1.0, 2.0, 0.25])
    bits = (_numbers(rng, count, 4) > 0).float()
    numbers = _numbers(rng, count, 4)
    sigmoid, softmax = torch.sigmoid, lambda x: F.log_softmax(x, 1)
    reduction = str(rng.choice(["mean", "mean", "sum"]))
    choices: dict[str, tuple[Any, torch.Tensor, Any]] = {
        "classes": (nn.CrossEntropyLoss(reduction=reduction), _labels(rng, count, 4), None),
        "classes smoothed, ignored": (nn.CrossEntropyLoss(label_smoothing=0.1), _labels(rng, count, 4, -100), None),
        "classes weighted": (nn.CrossEntropyLoss(weights, reduction=reduction), _labels(rng, count, 4, -100), None),
        "classes but one": (nn.CrossEntropyLoss(ignore_index=2), _labels(rng, count, 4), None),
        "F.cross_entropy": (F.cross_entropy, _labels(rng, count, 4, -100), None),
        "likelihood": (nn.NLLLoss(reduction=reduction), _labels(rng, count, 4, -100), softmax),
        "shares": (nn.CrossEntropyLoss(weights), _shares(rng, count), None),
        "squares": (nn.MSELoss(reduction=reduction), numbers, None),
        "absolutes": (nn.L1Loss(reduction=reduction), numbers, None),
        "smooth": (nn.SmoothL1Loss(beta=0.5), numbers, None),
        "huber": (nn.HuberLoss(delta=0.7), numbers, None),
        "bits of logits": (nn.BCEWithLogitsLoss(pos_weight=weights, reduction=reduction), bits, None),
        "bits": (nn.BCELoss(reduction=reduction), bits, sigmoid),
        "saturated bits": (nn.BCELoss(), bits, lambda x: sigmoid(300 * x)),
        "divergence": (nn.KLDivLoss(reduction="batchmean"), _shares(rng, count), softmax),
        "counts": (nn.PoissonNLLLoss(full=True), bits * 3, None),
        "signs": (nn.SoftMarginLoss(), 2 * bits - 1, None),
        "margins": (nn.MultiMarginLoss(margin=0.8), _labels(rng, count, 4), None),
        "several": (nn.MultiLabelSoftMarginLoss(weights), bits, None),
    }
    word = str(rng.choice([*choices, "own", "no targets"]))
    if word == "own":
        own = _own_rows
        return Goal(word, {"out": 4}, _only, own, lambda o, y: own(o, y).mean(), numbers)
    if word == "no targets":
        return Goal(word, {"out": 4}, lambda h: h["out"].square().mean(1), _as_they_are, lambda o, _: o.mean(), None)
    loss, y, link = choices[word]
    described = jax.ShapeDtypeStruct((1, 4), "float32") if word == "shares" else None
    join = _only if link is None else lambda h: link(h["out"])
    return Goal(f"{word} {reduction}", {"out": 4}, join, loss, loss, y, described)


def _only(heads: dict[str, Any]) -> Any:
    return heads["out"]


def _own_rows(outputs: Any, y: Any) -> Any:
    return (outputs - y).abs().mean(1) + 0.1 * outputs.square().sum(1)


def _as_they_are(rows: Any) -> Any:
    return rows


def _of_two(rng: np.random.Generator, count: int) -> Goal:
    """Two outputs, in a dict whose order is not that of its names, or in a tuple, with a target each."""
    names = ("z", "a") if rng.random() < 0.7 else ("a", "z")
    first, second = names
    is_dict = rng.random() < 0.6
    y = {name: _numbers(rng, count, 3) for name in names}
    join: Callable[[dict[str, Any]], Any] = dict if is_dict else lambda h: tuple(h.values())
    type = jax.ShapeDtypeStruct((1, 3), "float32")
    keys = names if is_dict else (0, 1)

    def mean(rows: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        return lambda o, y: rows(o[keys[0]], o[keys[1]], y[first], y[second]).mean()

    def flat(a: Any, b: Any, ya: Any, yb: Any) -> Any:
        return F.mse_loss(a, ya, reduction="none").mean(1) + 3 * (b - yb).abs().mean(1)

    word = str(rng.choice(["list", "dict", "flat", "joint"]))
    described: Any = dict.fromkeys(reversed(names), type)
    if word in ("list", "dict"):
        if not is_dict:
            y = {f"output_{i}": v for i, v in enumerate(y.values())}
            first, second = y
        parts: Any = [nn.MSELoss(), nn.L1Loss()]
        parts = parts if word == "list" else dict(zip(reversed((first, second)), reversed(parts), strict=True))
        eager = mean(lambda a, b, ya, yb: F.mse_loss(a, ya) + F.l1_loss(b, yb))
        return Goal(f"{word} of {'dict' if is_dict else 'tuple'}", dict.fromkeys(names, 3), join, parts, eager, y)
    if not is_dict:
        described = dict.fromkeys(names, type)
    loss: Any = flat if word == "flat" else lambda outputs, y: flat(*_by(outputs, keys), y[first], y[second])
    return Goal(
        f"{word} of {'dict' if is_dict else 'tuple'}", dict.fromkeys(names, 3), join, loss, mean(flat), y, described
    )


def _by(outputs: Any, keys: Any) -> list[Any]:
    return [outputs[key] for key in keys]


def _of_several(rng: np.random.Generator, count: int) -> Goal:
    """Outputs that a loss of torch.nn compares with each other."""
    signs = torch.from_numpy(rng.choice([-1.0, 1.0], count).astype(np.float32))
    word = str(rng.choice(["triplet", "cosine", "ranking", "normal"]))
    names = {"triplet": ("p", "q", "a"), "cosine": ("z", "a"), "ranking": ("w", "l"), "normal": ("mean", "deviation")}
    heads = dict.fromkeys(names[word], 1 if word == "ranking" else 3)
    is_dict = rng.random() < 0.6
    loss: Any = {
        "triplet": nn.TripletMarginLoss(margin=2.0, swap=bool(rng.random() < 0.5)),
        "cosine": nn.CosineEmbeddingLoss(0.2),
        "ranking": nn.MarginRankingLoss(0.5),
        "normal": nn.GaussianNLLLoss(full=True),
    }[word]
    y = None if word == "triplet" else _numbers(rng, count, 3) if word == "normal" else signs

    def join(made: dict[str, Any]) -> Any:
        parts = {k: v[:, 0] for k, v in made.items()} if word == "ranking" else dict(made)
        if word == "normal":
            parts["deviation"] = F.softplus(parts["deviation"])
        return parts if is_dict else tuple(parts.values())

    def eager(outputs: Any, y: Any) -> Any:
        parts = list(outputs.values()) if is_dict else list(outputs)
        if word == "normal":
            return loss(parts[0], y, parts[1])
        return loss(*parts, *([] if y is None else [y]))

    return Goal(f"{word} of {'dict' if is_dict else 'tuple'}", heads, join, loss, eager, y)
