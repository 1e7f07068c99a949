"""Language models on the engines of accelerators: with frozen weights of four bits they run whole and are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pocketune
from converter.frontends import decoder as decoder_frontend
from converter.program.file import read_program
from converter.runtime.engines import engine
from converter.support.errors import UsageError
from converter.tools.certify.certify import examine
from converter.tools.certify.reference import calls
from tests.decoder_frontend import written
from tests.steps import stepped
from tests.tools.certify.stock import Stock

OPTIONS: dict[str, Any] = {"batch": 1, "update": "lora-8", "optimizer": "adam", "signatures": ("train", "infer")}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of two layers of width 128, 96 words; attention is not so sharp that rounding chooses the word."""
    made = tmp_path_factory.mktemp("decoder") / "model.gguf"
    entries = written.metadata("qwen2", embedding_length=128, feed_forward_length=256)
    arrays = written.weights("qwen2", entries)
    sharp = ("q_proj.weight", "k_proj.weight")
    written.write(made, "qwen2", entries, {n: a / 3 if n.endswith(sharp) else a for n, a in arrays.items()})
    return made


def losses(program: Any) -> list[float]:
    ids = np.arange(32, dtype=np.int32)[None] * 7 % 96
    return stepped(program, [(ids, np.roll(ids, -1, 1))] * 3, 0.01).losses


def test_what_the_cpu_makes_of_an_engine_s_program_is_what_its_own_makes(path: Path) -> None:
    """That one is held against JAX in tests/driver."""
    options = {**OPTIONS, "frozen": "int4-blockwise", "signatures": ("train",), "check": False}
    own, *others = (
        losses(pocketune.build(path, length=32, target=target, **options)) for target in ("litert-2", "gpu", "hexagon")
    )
    assert own[2] < 0.9 * own[0]
    for given in others:
        np.testing.assert_allclose(given, own, rtol=1e-5)


@pytest.mark.parametrize(
    ("on", "frozen", "options"),
    [
        ("gpu", "int4-blockwise", {"length": (8, 32)}),
        pytest.param("hexagon:SM8650", "int4-blockwise", {"length": 32}, marks=pytest.mark.slow),
        pytest.param("hexagon:SM8650", "float16", {"length": 32}, marks=pytest.mark.slow),
        *(
            pytest.param(on, frozen, options, marks=pytest.mark.slow)
            for on in ("gpu", "hexagon:SM8650", "web")
            for frozen, options in (
                ("float32", {"length": 32, "blocks": "on"}),
                ("int4", {"length": (8, 32)}),
                ("int4-blockwise", {"length": 32, "blocks": "on", "batch": 2, "micro_batch": 1}),
                ("int4-blockwise-64", {"packed": True}),
                ("float32", {"length": 32, "update": "full"}),
                ("int4-blockwise", {"length": 32, "update": "sparse"}),
                ("int4-blockwise", {"length": 32, "update": "head"}),
            )
        ),
    ],
)
def test_an_engine_takes_a_decoder_whole(
    on: str, frozen: str, options: dict[str, Any], path: Path, tmp_path: Path
) -> None:
    if (missing := engine(on).missing()) is not None:
        pytest.skip(f"{on}: {missing}")
    given = {**OPTIONS, **options}
    model = decoder_frontend.Model(path, length=32, packed=True) if given.pop("packed", False) else path
    program = pocketune.build(model, frozen=frozen, target=on.partition(":")[0], check=False, **given)
    made = tmp_path / "personal.tflite"
    program.write(made)
    certificate = pocketune.certify(made, on=on, steps=2)
    assert certificate.ok, certificate.failures
    assert certificate.whole
    if isinstance(given.get("length"), tuple):  # what it says is said of the shorter rows, too
        assert {call.signature for call in calls(read_program(made), steps=1)} == set(program.manifest.signatures) - {
            "apply"
        }


def test_a_step_of_fewer_tokens_that_is_wrong_is_found(tmp_path: Path) -> None:
    written.write(tmp_path / "model.gguf")
    options = {**OPTIONS, "update": "lora-2:q_proj", "signatures": ("train",), "check": False}
    pocketune.build(tmp_path / "model.gguf", length=(8, 16), **options).write(tmp_path / "p.tflite")
    program = read_program(tmp_path / "p.tflite")
    assert examine(program, Stock(), steps=1).ok
    certificate = examine(program, Stock("train_length_8", "loss"), steps=1)
    assert not certificate.ok
    assert [failure.what.partition(":")[0] for failure in certificate.failures] == ["train_length_8"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"frozen": "int4-dynamic"}, r"rounds no activation.*frozen='int4-blockwise' or frozen='int4'"),
        ({"signatures": ("train", "generate")}, r"'generate'.*five axes.*second program for the CPU"),
        ({"signatures": ("train", "generate"), "target": "hexagon"}, r"'generate'.*five axes"),
    ],
)
def test_what_an_engine_has_no_form_of_is_refused_with_the_nearest(
    options: dict[str, Any], said: str, path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        pocketune.build(path, length=32, **{**OPTIONS, "target": "gpu", **options})
