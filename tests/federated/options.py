"""Records what a client answers where tensors stay at home, slots travel, or FedProx holds the weights.

    python -m tests.federated.options

It writes `options.tflite`, `room.tflite` and `options.json` into `tests/federated/recorded`: a program with Adam and
FedProx's term, one of two classes with room for two, and for each case what is personal, the configs of its rounds, and
what the client in Python has after them. The clients in Kotlin and TypeScript do the same rounds. What Python's client
gives is compared with JAX and NumPy elsewhere (`test_proximal.py`, `runs/test_personal.py`,
`runs/test_room_for_classes.py`). There are names and patterns, too, with what Python's `fnmatch` says.
"""

from __future__ import annotations

import fnmatch
import json
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

import converter
import jax_frontend
from converter.federated import Exchange, Participant, read_rows
from converter.program.file import read_program
from converter.runtime import TrainingSession

RECORDED = Path(__file__).resolve().parent / "recorded"
HEAD = ["head/*"]
#: Of each case: the patterns of what is personal, whether slots travel, and what the config of each round asks.
CASES: dict[str, tuple[list[str], bool, list[dict[str, Any]]]] = {
    "slots at home": ([], False, [{}, {}]),
    "slots travel": ([], True, [{}, {}]),
    "FedProx of the build": ([], False, [{}]),
    "FedProx of the server": ([], False, [{"proximal-mu": 5.0}, {"proximal-mu": 5.0}]),
    "FedProx with a mu of zero": ([], False, [{"proximal-mu": 0.0}]),
    "a personal head": (HEAD, False, [{}, {}]),
    "a personal head, and slots travel": (HEAD, True, [{}, {}]),
    "a personal head, held near itself": (HEAD, False, [{"proximal-mu": 0.0}, {"proximal-mu": 20.0}]),
    "some steps, the last of a short batch": ([], False, [{"steps": 3}]),
    "two patterns": (["h[!f-z]ad/b", "*t/?"], False, [{}]),
}
PATTERNS = (
    *("*", "head/*", "*/w", "h?ad/w", "[hb]*/[!w]", "head", "HEAD/*", "*.b", "h.*", "", "**w", "(w|b)"),
    *("[]h]ead/w", "[!]x]ead/w", "[h", "[a-h]ead/*", "[h-a]ead/*", "[!h-a]ead/*", "[-h]ead/w", "[h-]ead/w"),
    *("[a-c-h]ead/w", "[--z]ead/w", "[!]", "[]", "a[^b]", "a[\\]b", "k[\u00f0-\u00ff]?/w"),
)
NAMES = (
    "head/w",
    "head/b",
    "body.b",
    "HEAD/w",
    "-ead/w",
    "]ead/w",
    "h",
    "",
    "[h",
    "a^",
    "a\\b",
    "(w|b)",
    "kö\U0001f600/w",
)


def net(params: Any, x: Any) -> Any:
    for name in ("hidden", "next"):
        x = jax.numpy.tanh(x @ params[name]["w"])
    return x @ params["head"]["w"] + params["head"]["b"]


def model(seed: int, classes: int) -> jax_frontend.Model:
    """The net with weights of its own for so many classes."""
    rng = np.random.default_rng(seed)
    shapes = {"hidden": {"w": (8, 4)}, "next": {"w": (4, 4)}, "head": {"w": (4, classes), "b": (classes,)}}
    params = jax.tree.map(
        lambda s: rng.normal(0, 0.4, s).astype(np.float32), shapes, is_leaf=lambda s: isinstance(s, tuple)
    )
    return jax_frontend.Model(net, params, inputs=[jax.ShapeDtypeStruct((1, 8), np.float32)])


#: Of both programs.
ASKED: dict[str, Any] = {
    "update": {"next/w": 1, "head/*": 1},
    "loss": "sparse_categorical_crossentropy",
    "check": False,
}


def built() -> bytes:
    """The program."""
    return converter.build(model(5, 3), batch=8, optimizer="adam", proximal=0.5, **ASKED).data


def with_room() -> bytes:
    """A program of the same net that knows two classes, with room for the third of the rows and one more."""
    return converter.build(model(6, 2), batch=20, optimizer="sgd", classes="2+2", labels=["0", "1"], **ASKED).data


def answered(program: bytes, case: str) -> dict[str, Any]:
    """What Python's client has after the rounds of a case, in each of which it is sent what it answered before."""
    patterns, travel, rounds = CASES[case]
    client = Participant(program, personal=patterns)
    exchange, kept = client.exchange, {}
    with TrainingSession(program) as session:
        arrays = exchange.sent(session.state(), travel)
    begun = dict(arrays)
    for number, more in enumerate(rounds, 1):
        config = {"program": exchange.identity, "learning-rate": 0.05, "epochs": 2, "server-round": number, **more}
        arrays, figures, kept = client.train(arrays, config, read_rows(RECORDED / "rows.npz"), kept)
    judged = client.evaluate(arrays, config, read_rows(RECORDED / "rows.npz"), kept)
    return {
        "personal": patterns,
        "bytes": exchange.nbytes(),
        "norm": exchange.norm,
        "rounds": rounds,
        "sent": {name: _listed(array) for name, array in begun.items()},
        "arrays": {name: _listed(array) for name, array in arrays.items()},
        "own": {name: _listed(one.sent(kept[one.tensor])) for name, one in exchange.personal.items()},
        "loss": figures["loss"],
        "judged": judged["loss"],
    }


def in_room(program: bytes) -> dict[str, Any]:
    """How good a client in Python is before and after a round in which a class of its own stays at home."""
    with tempfile.TemporaryDirectory() as folder, TrainingSession(program) as session:
        own = Path(folder, "own.state")
        sent = Exchange(read_program(program), personal=HEAD).sent(session.state())
        session.add_class("mine")
        session.save(own)
        client, rows = Participant(program, personal=HEAD, own=own), read_rows(RECORDED / "rows.npz")
        config = {"program": client.exchange.identity, "learning-rate": 0.5}
        before = client.evaluate(sent, config, rows)["loss"]
        arrays, _, _ = client.train(sent, config, rows, {})
        after = client.evaluate(arrays, config, rows)["loss"]
    return {"sent": {name: _listed(array) for name, array in sent.items()}, "before": before, "after": after}


def matched() -> list[list[Any]]:
    """Patterns, names, and whether they match."""
    return [[pattern, name, fnmatch.fnmatchcase(name, pattern)] for pattern in PATTERNS for name in NAMES]


def record() -> dict[str, Any]:
    """What `options.json` holds, of the program that was recorded."""
    program = (RECORDED / "options.tflite").read_bytes()
    return {
        "cases": {case: answered(program, case) for case in CASES},
        "room": in_room((RECORDED / "room.tflite").read_bytes()),
        "patterns": matched(),
    }


def _listed(array: np.ndarray) -> dict[str, Any]:
    return {"shape": list(array.shape), "numbers": array.reshape(-1).tolist()}


if __name__ == "__main__":
    (RECORDED / "options.tflite").write_bytes(built())
    (RECORDED / "room.tflite").write_bytes(with_room())
    (RECORDED / "options.json").write_text(json.dumps(record()) + "\n")
