"""The recorded round (`record.py`) and Flower's `.proto` files are what the client in Python and Flower itself have."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from converter.federated import Exchange, Participant, read_rows
from converter.federated.arrays import identity_of
from converter.program.file import read_program
from converter.program.manifest import LabelledOutput
from tests.federated import options
from tests.federated.flower import BIN, needs_flower
from tests.tree import ROOT

RECORDED = Path(__file__).resolve().parent / "recorded"
PROTO = ROOT / "android_app/federated/src/main/proto"
#: Prints fields of Flower's messages as they stand in a `.proto` file, by file.
DESCRIBE = """
import importlib, json
from google.protobuf.descriptor import FieldDescriptor as F
types = {number: name[5:].lower() for name, number in vars(F).items() if name.startswith("TYPE_")}
def fields(messages):
    found = {}
    for message in messages:
        found |= fields(message.nested_types)
        for f in message.fields:
            found[f"{message.name}.{f.name}"] = [f.message_type.name if f.message_type else types[f.type], f.number]
    return found
files = {name: importlib.import_module(f"flwr.proto.{name}_pb2").DESCRIPTOR for name in NAMES}
print(json.dumps({name: fields(file.message_types_by_name.values()) for name, file in files.items()}))
"""


def test_the_recorded_program_is_what_is_expected_of_it() -> None:
    """Kotlin's tests compare with these numbers."""
    expected = json.loads((RECORDED / "expected.json").read_text())
    participant = Participant(RECORDED / "program.tflite")
    exchange = Exchange(read_program(RECORDED / "program.tflite"))
    assert (exchange.identity, exchange.nbytes()) == (expected["identity"], expected["bytes"])
    labelled = dataclasses.replace(read_program(RECORDED / "program.tflite").manifest, labels=("a", "ü", "c"))
    assert identity_of(labelled) == expected["labelled"]
    parameters = tuple(exchange.trained)
    own = dataclasses.replace(labelled, labelled=(LabelledOutput("logits", 0, parameters),))
    assert identity_of(own, parameters) == expected["identity"]
    assert identity_of(own, parameters[1:]) == expected["labelled"]
    np.testing.assert_allclose(exchange.norm, expected["norm"])
    arrays = {n: np.array(a["numbers"], np.float32).reshape(a["shape"]) for n, a in expected["arrays"].items()}
    config = {"program": expected["identity"], "epochs": 2, "learning-rate": 0.1}
    trained, figures, _ = participant.train(arrays, config, read_rows(RECORDED / "rows.npz"), {})
    assert figures.keys() == {"num-examples", "loss", "seconds"}
    assert all(np.abs(trained[name] - arrays[name]).max() > 1e-3 for name in arrays)


@needs_flower
def test_the_messages_are_those_of_flower() -> None:
    files = sorted(PROTO.rglob("*.proto"))
    code = DESCRIBE.replace("NAMES", repr([file.stem for file in files]))
    said = subprocess.run([BIN / "python", "-c", code], capture_output=True, text=True, check=True)
    theirs = json.loads(said.stdout)
    assert len(files) == 6
    for file in files:
        text = file.read_text()
        assert "Licensed under the Apache License, Version 2.0" in text
        assert "Changed for Pocketune" in text
        own = _fields(text)
        assert own
        assert own.items() <= {k: tuple(v) for k, v in theirs[file.stem].items()}.items(), file.stem


def _fields(text: str) -> dict[str, tuple[str, int]]:
    """Fields of messages: the type's name and the number; those of maps are left out."""
    found, stack = {}, []
    for part in re.finditer(r"//[^\n]*|(message|oneof) (\w+) \{|\}|(?:repeated |optional )?(\w+) (\w+) = (\d+);", text):
        kind, name, of, field, number = part.groups()
        if kind:
            stack.append(name if kind == "message" else "")
        elif part[0] == "}":
            stack.pop()
        elif field:
            found[f"{[m for m in stack if m][-1]}.{field}"] = (of, int(number))
    return found


@pytest.mark.parametrize("case", options.CASES)
def test_what_is_recorded_of_options_is_what_the_client_does(case: str) -> None:
    """Kotlin's tests and those of the page compare with these numbers."""
    wanted = json.loads((RECORDED / "options.json").read_text())["cases"][case]
    found = options.answered((RECORDED / "options.tflite").read_bytes(), case)
    assert {name: found[name] for name in ("personal", "bytes", "rounds")} == {
        name: wanted[name] for name in ("personal", "bytes", "rounds")
    }
    for kind in ("sent", "arrays", "own"):
        assert list(found[kind]) == list(wanted[kind])
        for name, array in wanted[kind].items():
            assert found[kind][name]["shape"] == array["shape"]
            np.testing.assert_allclose(found[kind][name]["numbers"], array["numbers"], atol=1e-6, err_msg=name)
    np.testing.assert_allclose(
        [found[n] for n in ("norm", "loss", "judged")], [wanted[n] for n in ("norm", "loss", "judged")], rtol=1e-5
    )


def test_what_is_recorded_of_a_class_that_stays_at_home_is_what_the_client_does() -> None:
    wanted = json.loads((RECORDED / "options.json").read_text())["room"]
    found = options.in_room((RECORDED / "room.tflite").read_bytes())
    assert [found["before"], found["after"]] == pytest.approx([wanted["before"], wanted["after"]], rel=1e-5)
    assert found["after"] < found["before"]
    assert list(found["sent"]) == ["next/w"]


def test_what_is_recorded_of_patterns_is_what_python_says() -> None:
    matches = json.loads((RECORDED / "options.json").read_text())["patterns"]
    assert matches == options.matched()
    assert len({found for *_, found in matches}) == 2
