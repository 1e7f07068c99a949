"""PockEngine's table for a small decoder: step, memory, loss and exact match of full, sparse, LoRA and head.

    .venv/bin/python -m scripts.bench.decoders.sparse                  # all of it, some minutes
    .venv/bin/python -m scripts.bench.decoders.sparse --layers 32 --no-learn   # steps and memory alone

A decoder of characters learns the documentation of Python's standard library first. What it is taught then, with each
scheme from the same weights, is to read names of that library aloud, `getElementsByTagName` as `get elements by tag
name`; exact match is of names that it was not taught. Time is the CPU's on one thread, the least of some steps; of all
schemes in turn, as others may be at work.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np

import converter
from converter.runtime import TrainingSession, rows_of_texts
from examples import llama

LENGTH, BATCH = 64, 16
#: Characters: printable ones, and what ends a text.
FIRST, END, VOCABULARY = 32, 95, 96
#: Modules of the standard library that do nothing but define.
MODULES = (
    *("argparse", "ast", "asyncio", "configparser", "csv", "dataclasses", "datetime", "decimal", "difflib", "enum"),
    *("email.message", "ftplib", "functools", "http.client", "http.cookies", "imaplib", "inspect", "io", "json"),
    *("logging", "mailbox", "optparse", "os", "pathlib", "pickle", "platform", "pydoc", "random", "shutil", "smtplib"),
    *("socket", "sqlite3", "ssl", "statistics", "string", "subprocess", "tarfile", "textwrap", "threading", "tokenize"),
    *("typing", "unittest", "unittest.mock", "urllib.parse", "urllib.request", "xml.dom.minidom", "xml.sax.handler"),
    *("xml.etree.ElementTree", "xmlrpc.client", "zipfile"),
)
SCHEMES = ("full", "sparse", "lora-8", "head")
#: No others were tried.
RATES = {"full": 1e-3, "sparse": 2e-3, "lora-8": 4e-3, "head": 1e-2}
HELD_OUT = 128


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--before", type=int, default=1500, help="steps on the documentation")
    parser.add_argument("--steps", type=int, default=400, help="steps of each scheme on names")
    parser.add_argument("--learn", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    names, documents = library()
    order = np.random.default_rng(0).permutation(len(names))
    taught, held_out = [names[i] for i in order[HELD_OUT:]], [names[i] for i in order[:HELD_OUT]]
    shape: dict[str, Any] = {"layers": args.layers, "width": args.width, "heads": 4, "key_heads": 2}
    model = llama.build(length=LENGTH, vocabulary=VOCABULARY, **shape)
    with TemporaryDirectory() as folder:
        if args.learn:
            model = pretrained(model, documents, args.before)
        files = {scheme: Path(folder) / f"{scheme}.tflite" for scheme in SCHEMES}
        costs = {scheme: built(model, scheme, file) for scheme, file in files.items()}
        found = {scheme: {**costs[scheme], "ms": ms} for scheme, ms in timed(files, taught).items()}
        if args.learn:
            for scheme, file in files.items():
                found[scheme] |= learned(file, RATES[scheme], taught, held_out, args.steps)
    ratio = found["lora-8"]["ms"] / found["sparse"]["ms"]
    print(json.dumps({"names": len(taught), **shape, "schemes": found, "lora over sparse": ratio}, indent=1))


def library() -> tuple[list[tuple[str, str]], str]:
    """Return names of several words with these words, sorted, and the documentation of all modules."""
    names, documents = set[str](), list[str]()
    for module in map(importlib.import_module, MODULES):
        for holder in [module, *(item for item in vars(module).values() if isinstance(item, type))]:
            names |= {name for name in vars(holder) if re.fullmatch(r"[A-Za-z]+(_[A-Za-z]+)*", name)}
            said = [getattr(item, "__doc__", None) for item in vars(holder).values()]
            documents += [one for one in said if isinstance(one, str)]
    pairs = {name: words(name) for name in names if len(name) <= LENGTH // 2 - 4}
    text = re.sub(r"\s+", " ", " ".join(dict.fromkeys(documents)))
    return sorted((name, said) for name, said in pairs.items() if " " in said), text


def words(name: str) -> str:
    """Return the words of a name in small letters."""
    separate = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_", " ", name)
    return separate.lower()


def ids_of(text: str) -> list[int]:
    """Return a text's characters by number; what is not printable is left out."""
    return [ord(c) - FIRST for c in text if 0 <= ord(c) - FIRST < END]


def rows(pairs: list[tuple[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Return names with what is said of them, and the labels of that alone, [n, LENGTH] each."""
    texts = [[*ids_of(f"{name}: "), *ids_of(said), END] for name, said in pairs]
    answers = [[False] * len(ids_of(f"{name}: ")) + [True] * (len(ids_of(said)) + 1) for name, said in pairs]
    return rows_of_texts(texts, LENGTH, answers)


def built(model: Any, scheme: str, file: Path) -> dict[str, Any]:
    """Write the program of a scheme; return what it says of its memory, in MB, and how much trains."""
    options: dict[str, Any] = {"signatures": ("train", "infer"), "check": False, "optimizer": "adam"}
    program = converter.build(model, loss="next_token", update=scheme, batch=BATCH, target="litert-2/x86-64", **options)
    program.write(file)
    trained = sum(p.size for p in map(np.asarray, TrainingSession(program.data).parameters().values()))
    return {"resident": program.costs["resident_bytes"] / 1e6, "trained": trained}


def pretrained(model: Any, documents: str, steps: int) -> Any:
    """Return the model with weights that have read the documentation."""
    options: dict[str, Any] = {"signatures": ("train",), "check": False, "optimizer": "adam"}
    program = converter.build(model, loss="next_token", update="full", batch=BATCH, target="litert-2/x86-64", **options)
    ids, rng = np.array(ids_of(documents), np.int32), np.random.default_rng(0)
    with TrainingSession(program.data) as session:
        for step in range(steps):
            begins = rng.integers(0, len(ids) - LENGTH - 1, BATCH)[:, None] + np.arange(LENGTH)
            session.train(ids[begins], ids[begins + 1], 2e-3 * min(1, (step + 1) / 50) * (1 - step / steps))
        read = session.parameters()
    params = jax.tree_util.tree_map_with_path(
        lambda path, _: read[jax.tree_util.keystr(path, simple=True, separator="/")], model.params
    )
    return type(model)(model.apply, params, model.inputs, model.layers)


def timed(files: dict[str, Path], pairs: list[tuple[str, str]], rounds: int = 8) -> dict[str, float]:
    """Return milliseconds of a step of each program, taken in turn."""
    x, y = rows(pairs[:BATCH])
    sessions = {scheme: TrainingSession(file) for scheme, file in files.items()}
    least = dict.fromkeys(files, float("inf"))
    for _ in range(rounds):
        for scheme, session in sessions.items():
            begin = time.process_time()
            session.train(x, y, 0.0)
            least[scheme] = min(least[scheme], 1e3 * (time.process_time() - begin))
    for session in sessions.values():
        session.close()
    return least


def learned(
    file: Path, rate: float, taught: list[tuple[str, str]], held_out: list[tuple[str, str]], steps: int
) -> dict[str, float]:
    """Return the loss and the share of held out names that are read rightly, before and after some steps."""
    x, y = rows(taught)
    rng = np.random.default_rng(0)
    with TrainingSession(file) as session:
        before = exactly(session, held_out)
        losses = []
        for step in range(steps):
            chosen = rng.choice(len(x), BATCH, replace=False)
            losses.append(session.train(x[chosen], y[chosen], rate * (1 - step / steps)))
        return {"before": before, "exact": exactly(session, held_out), "loss": float(np.mean(losses[-20:]))}


def exactly(session: TrainingSession, pairs: list[tuple[str, str]]) -> float:
    """Return the share of names whose words are what is written behind them, the likeliest character each time."""
    right = 0
    for begin in range(0, len(pairs), BATCH):
        some = pairs[begin : begin + BATCH]
        texts = [ids_of(f"{name}: ") for name, _ in some]
        done = [False] * len(some)
        while not all(done):
            x = np.zeros((len(some), LENGTH), np.int32)
            for row, text in enumerate(texts):
                x[row, : len(text)] = text
            logits = session.infer(x)
            for row, text in enumerate(texts):
                if not done[row]:
                    text.append(int(logits[row, len(text) - 1].argmax()))
                    done[row] = text[-1] == END or len(text) == LENGTH
        right += sum(text == [*ids_of(f"{name}: {said}"), END] for text, (name, said) in zip(texts, some, strict=True))
    return right / len(pairs)


if __name__ == "__main__":
    main()
