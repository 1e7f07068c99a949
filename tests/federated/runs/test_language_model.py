"""LoRA of a decoder in rounds, and the adapter that comes of it: the averaged factors, in PEFT's file."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import converter
from converter.driver.program import Program
from converter.federated import Exchange, Participant, identity
from converter.program.file import read_program
from converter.runtime import TrainingSession, export_adapter, import_adapter, load_state
from tests.decoder_frontend import written
from tests.federated.flower import ended, needs_flower, superlink
from tests.federated.people import Rows, averaged
from tests.federated.test_rounds import EPOCHS, RATE, project
from tests.federated.test_twin import mean

LENGTH, ROUNDS, PEOPLE = 16, 3, 3


@functools.cache
def decoder(folder: Path) -> Program:
    """Two layers of Qwen2's kind, as a file of random weights."""
    entries = written.metadata("qwen2")
    written.write(folder / "model.gguf", "qwen2", entries)
    asked = {"update": "lora-4:q_proj,v_proj", "optimizer": "sgd", "check": False}
    return converter.build(str(folder / "model.gguf"), length=LENGTH, batch=2, **asked)


def texts_of(person: int) -> Rows:
    """Token ids that count up by a step of one's own, and what follows each; the first four are a question."""
    starts = np.random.default_rng(person).integers(0, 96, 4 + person)
    ids = (starts[:, None] + (person + 1) * np.arange(LENGTH + 1)) % 96
    y = ids[:, 1:].astype(np.int32)
    y[:, :4] = -1
    return ids[:, :-1].astype(np.int32), y


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return decoder(tmp_path_factory.mktemp("decoder"))


def test_rounds_of_adapters_are_numpys(program: Program) -> None:
    exchange = Exchange(read_program(program.data))
    assert {name.rpartition("/")[2] for name in exchange.trained} == {"lora_a", "lora_b"}
    assert len(exchange.trained) == 2 * 2 * 2, "both factors, of q and v, in both layers"
    people = [texts_of(person) for person in range(PEOPLE)]
    clients = [Participant(program.data) for _ in people]
    with TrainingSession(program.data) as session:
        arrays = exchange.sent(session.state())
    config = {"program": identity(program.data), "epochs": EPOCHS, "learning-rate": RATE}
    for number in range(ROUNDS):
        plan = config | {"server-round": number + 1}
        found = [client.train(arrays, plan, people[k], {}) for k, client in enumerate(clients)]
        arrays = mean([one[0] for one in found], [one[1]["num-examples"] for one in found])
    wanted = averaged(program, people, ROUNDS, EPOCHS, RATE)
    for name, array in exchange.taken(arrays).items():
        np.testing.assert_allclose(array, wanted[name], rtol=0, atol=1e-6, err_msg=name)


@needs_flower
@pytest.mark.slow
def test_rounds_of_a_superlink_end_in_an_adapter(program: Program, tmp_path: Path) -> None:
    program.write(tmp_path / "program.tflite")
    (tmp_path / "people").mkdir()
    files = [tmp_path / f"people/{person}.npz" for person in range(PEOPLE)]
    for person, file in enumerate(files):
        x, y = texts_of(person)
        np.savez(file, x=x, y=y)
    with superlink(tmp_path / "flower") as link:
        server = project(link, tmp_path, PEOPLE, ROUNDS)
        clients = [link.client(tmp_path / "program.tflite", file) for file in files]
        link.run("flwr", "run", ".", "here", "--stream", at=server, seconds=400)
        ended(clients)
    result = server / "result/shared.state"
    found = load_state(result).tensors
    wanted = averaged(program, [texts_of(person) for person in range(PEOPLE)], ROUNDS, EPOCHS, RATE)
    with TrainingSession(program.data) as session:
        built = session.state()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5, err_msg=name)
        assert np.abs(array - built[name]).max() > 1e-7, name
    export_adapter(program.data, tmp_path / "adapter", result, base="somebody/a-decoder")
    shared = Exchange(read_program(program.data)).sent(found)
    peft = load_file(tmp_path / "adapter/adapter_model.safetensors")
    assert len(peft) == len(shared)
    for name, array in shared.items():
        layer, _, factor = name.removesuffix("").rpartition(".weight/")
        key = f"base_model.model.{layer}.lora_{factor[-1].upper()}.weight"
        np.testing.assert_array_equal(peft[key], array.T if peft[key].shape != array.shape else array, err_msg=key)
    assert not import_adapter(program.data, tmp_path / "adapter", tmp_path / "again.state")
    again = load_state(tmp_path / "again.state").tensors
    for name in wanted:
        np.testing.assert_array_equal(again[name], found[name], err_msg=name)
