"""Judges models with `head_reads`: what the last layer reads beside what the framework itself gives there.

`python -m tests.driver.head_reads.judged_reads keras FIRST COUNT` judges models of so many seeds, a line for each that
is wrong or refused.
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import pocketune
from converter.support.errors import PocketuneError
from tests.driver.head_reads.drawn import Dice, Drawn, Inside

_READ = re.compile(r"what (\S+) reads, (.*), is an input of the last layer too")


def pooled(value: Any, said: str, token: int | None, mask: Any, positions: int | None) -> list[Any]:
    """Return the parts, [rows, channels], of what a note says of a value [rows, positions..., channels] of any library.

    Raises:
        ValueError: it is said to be read otherwise than the net itself reads it.
    """
    rows, channels = len(value), value.shape[-1]
    text = value.reshape(rows, -1, channels)
    if said == "as it is":
        if text.shape[1] != 1:
            raise ValueError(f"{said}, and it has {text.shape[1]} positions")
        return [text[:, 0]]
    if found := re.fullmatch(r"in means of (\d+) parts along each axis", said):
        cells = value.reshape(rows, *value.shape[1:-1], *([1] if value.ndim == 3 else []), channels)
        high, wide = (_parts(size, int(found[1])) for size in cells.shape[1:3])
        return [cells[:, i][:, :, j].mean((1, 2)) for i in high for j in wide]
    if found := re.fullmatch(r"of position (\d+) of (\d+), which the head reads", said):
        if int(found[1]) != token or int(found[2]) != text.shape[1]:
            raise ValueError(f"{said}, and the net reads {token} of {text.shape[1]}")
        return [text[:, token]]
    if found := re.fullmatch(r"in the mean of (\d+) positions, weighted as before the head", said):
        if mask is None:
            raise ValueError(f"{said}, and the net has no mask")
        return [(text * mask[..., None]).sum(1) / mask.sum(1).clip(1e-9)[:, None]]
    if (found := re.fullmatch(r"in the mean of (\d+) positions", said)) is None:
        raise ValueError(f"no such reading: {said}")
    if text.shape[1] != int(found[1]):
        raise ValueError(f"{said}, and it has {text.shape[1]}")
    if max(value.shape[1:-1], default=1) == text.shape[1] == positions:
        raise ValueError(f"{said}, and the net reads {'a token' if mask is None else 'by a mask'}")
    return [text.mean(1)]


def _parts(size: int, parts: int) -> list[slice]:
    parts = min(parts, size)
    stride = size // parts
    return [slice(k * stride, size - (parts - 1 - k) * stride) for k in range(parts)]


def expected(program: pocketune.Program, drawn: Drawn, inside: Inside) -> list[Any]:
    """Return what the last layer reads by the notes of a program and the framework's values, to be joined to one."""
    found = [inside.own]
    for note in program.notes:
        said = _READ.search(note.why)
        if note.status == "reads blocks" and said is not None:
            name = said[1]
            matching = [
                v for n, v in inside.reads.items() if n == name or n.startswith((f"{name}_", f"{name}/", f"{name}."))
            ]
            if not matching:
                raise ValueError(f"no layer is called {name}: {list(inside.reads)}")
            found += pooled(matching[0], said[2], drawn.token, inside.mask, drawn.positions)
    return found


def judge(drawn: Drawn, seed: int) -> tuple[list[str], list[str]]:
    """Return what is wrong with a model whose last layer reads blocks, and what was refused."""
    dice = Dice(seed + 1000)
    batch, many = dice.one(1, 2, 4), 6
    option = dice.one("blocks", "blocks", "blocks/2", "blocks/3", "blocks:1", "blocks:2/2")
    x = drawn.rows(many)
    inside = drawn.inside(x)
    try:
        program = pocketune.build(
            drawn.model, update="head", head="class_means", head_reads=option, batch=batch, check=False, **drawn.options
        )
    except PocketuneError as error:
        return [], [f"{option} batch {batch}: {error}"]
    refused = [f"{option}: {n.why}" for n in program.notes if n.status == "reads blocks" and not _READ.search(n.why)]
    try:
        wanted = np.concatenate(expected(program, drawn, inside), 1)
    except ValueError as error:
        return [f"{option}: {error}"], refused
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.tflite")
        program.write(path)
        with pocketune.TrainingSession(path) as session:
            features = session.features(x)
            wrong += differences("features", features, wanted)
            wrong += differences("infer", session.infer(x), inside.output)
    said = [n.why for n in program.notes if n.status == "reads blocks"]
    return [f"{option} batch {batch}: {one} {said}" for one in wrong], refused


def differences(what: str, ours: Any, theirs: np.ndarray) -> list[str]:
    """Return what is wrong with some numbers, if anything."""
    if not isinstance(ours, np.ndarray) or ours.shape != theirs.shape:
        return [f"{what}: shape {getattr(ours, 'shape', type(ours))}, not {theirs.shape}"]
    errors = np.abs(ours - theirs) / (1 + np.abs(theirs))
    places = np.flatnonzero((errors > 1e-4).any(0)) if errors.ndim > 1 else []
    return [f"{what}: off by {errors.max():.3g} in columns {places}"] if not errors.max() <= 1e-4 else []


def main(framework: str, first: int, count: int) -> None:
    """Print what is wrong with, or refused of, models of some seeds."""
    draw = importlib.import_module(f"tests.driver.head_reads.random_{framework}").draw
    for seed in range(first, first + count):
        drawn = draw(seed)
        try:
            wrong, refused = judge(drawn, seed)
        except Exception as error:
            wrong, refused = [f"{type(error).__name__}: {error}"], []
        for line in wrong:
            print(f"WRONG {seed} {drawn.story}\n   {line}".replace("\n", "\n  "), flush=True)
        for line in refused:
            print(f"refused {seed} {drawn.story}\n   {line}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
