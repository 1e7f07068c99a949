"""A target's table: one of one's own instead of a name, where that of desktops comes from, and what it lacks."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from importlib import resources
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import converter
import jax_frontend
from converter.backend import builtins as tfl
from converter.backend.stages import check_limits
from converter.backend.targets import tables, target
from converter.ir import INT32, Builder, TensorType
from converter.support.errors import UnsupportedError, UsageError
from tests.models.zoo import CASES
from tests.tree import ROOT

PHONE = resources.files("converter.backend.targets").joinpath("litert-2.toml").read_text()


def forms(where: Path) -> set[str]:
    """Of the gradients of ReLUs."""
    program = converter.build(CASES["lenet"].model(), batch=4, target=str(where), signatures=("train",), check=False)
    return {choice.form for choice in program.report if choice.op == "ReluGrad"}


def test_its_costs_decide(tmp_path: Path) -> None:
    for form, dear in {"select": "delegated", "mask": "select"}.items():
        (tmp_path / f"{form}.toml").write_text(PHONE.replace(f'"{dear}" = ', f'"{dear}" = 9'))
        assert forms(tmp_path / f"{form}.toml") == {form}


def test_it_may_be_of_a_runtime_that_lacks_something(tmp_path: Path) -> None:
    """The table of a phone's own library: it has limits, and no figure of a form that there is no kernel of."""
    (tmp_path / "phone.toml").write_text(tables()["tflite-2.16"])
    assert target(str(tmp_path / "phone.toml")) == target("tflite-2.16")


LIKE = 'name = "mine"\ndescription = "mine"\nlike = "litert-2"\nper_mac = { "batch_matmul" = 351.0 }\n'


def test_it_may_be_like_another_one(tmp_path: Path) -> None:
    """It says what differs, as a table of another distribution does."""
    (tmp_path / "mine.toml").write_text(LIKE)
    mine, phone = target(str(tmp_path / "mine.toml")), target("litert-2")
    per_mac = {**phone.per_mac, "batch_matmul": 351.0}
    assert mine == replace(phone, name="mine", description="mine", per_mac=per_mac)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"litert-2"', '"litert-3"', "like: unknown target 'litert-3'. Did you mean 'litert-2'"),
        ('name = "mine"', "", "name is missing"),
        ("351.0", "-1", "per_mac.batch_matmul must be positive"),
        ("batch_matmul", "batch_matmull", "per_mac.batch_matmull is unknown"),
        ("description", "speed", "speed"),
    ],
)
def test_what_is_wrong_with_one_that_is_like_another_is_said(old: str, new: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(LIKE.replace(old, new))
    with pytest.raises(UsageError, match=r"mine\.toml") as error:
        target(str(tmp_path / "mine.toml"))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("lanes = 8", "", "lanes is missing"),
        ("lanes = 8", "lanes = 8\nspeed = 3", "speed is unknown"),
        ("lanes = 8", "lanes = 8.5", "lanes must be a number, not 8.5"),
        ("lanes = 8", "lanes = true", "lanes must be a number, not True"),
        ('"packed" = ', '"packed" = -', "per_byte.packed must be positive"),
        ('"packed" = ', '"packed" = nan # ', "per_byte.packed must be positive, not nan"),
        ("[per_byte]", "[per_bite]", "per_byte is missing"),
        ('name = "litert-2"', "name = 2", "name must be a text"),
        ("shared_cache_bytes = 2097152", "shared_cache_bytes = 524287", "shared_cache_bytes is less than cache_bytes"),
        ("lanes = 8", "lanes = ", "cannot be read"),
    ],
)
def test_what_is_wrong_with_it_is_said(old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in PHONE
    (tmp_path / "mine.toml").write_text(PHONE.replace(old, new))
    with pytest.raises(UsageError) as error:
        target(str(tmp_path / "mine.toml"))
    assert said in str(error.value)
    assert "mine.toml" in str(error.value)


def test_bytes_cost_what_the_caches_behind_a_core_hold_of_them() -> None:
    x86 = target("litert-2/x86-64")
    table = replace(x86, cache_bytes=1 << 20, shared_cache_bytes=1 << 24, per_operator=0.0)
    near, beyond = (figures["transpose"] for figures in (table.per_byte, table.per_byte_beyond))
    costs = [table.moved("transpose", 1000, touched << 20) / 1000 for touched in (0, 1, 4, 16, 64)]
    assert costs == pytest.approx([near, near, (near + beyond) / 2, beyond, beyond])
    alone = replace(table, shared_cache_bytes=1 << 20)  # no caches are shared
    costs = [alone.moved("transpose", 1000, touched) / 1000 for touched in (1 << 20, (1 << 20) + 1)]
    assert costs == pytest.approx([near, beyond])


def test_what_a_target_is_for_is_a_note_of_the_build() -> None:
    model = jax_frontend.Model(
        lambda p, x: x @ p["w"], {"w": np.eye(3, dtype=np.float32)}, [np.zeros((1, 3), np.float32)]
    )
    notes = {name: converter.build(model, optimizer="sgd", target=name).notes for name in ("web", "litert-2")}
    said = [note.why for note in notes["web"] if note.subject == "target web"]
    assert len(said) == 1
    assert "trainer.js runs in WebAssembly" in said[0]
    assert not any(note.subject.startswith("target") for note in notes["litert-2"])


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        target(str(tmp_path / "none.toml"))


def test_the_table_of_desktops_is_the_mean_of_measured_machines() -> None:
    """Processors differ by up to three times in what memory costs beside products: no one machine's table is taken."""
    files = [*(ROOT / "scripts/bench/machines").glob("*.toml")]
    assert files
    machines = [tomllib.loads(file.read_text()) for file in files]
    assert len(machines) > 1
    table = tomllib.loads(tables()["litert-2/x86-64"])
    for section in ("per_mac", "per_byte", "per_byte_beyond"):
        for form, figure in table[section].items():
            mean = prod(machine[section][form] for machine in machines) ** (1 / len(machines))
            assert figure == pytest.approx(mean, rel=1e-3), form


@pytest.mark.parametrize(
    ("op", "kind", "way"),
    [
        (tfl.Neg(), TensorType((1, 2, 3, 4, 5)), "with fewer axes"),
        (tfl.CumSum(1), TensorType((2, 3), INT32), "in float32"),
        (tfl.CumSum(1), TensorType((1, 2, 3, 4, 5), INT32), "in float32 with fewer axes"),
    ],
)
def test_what_is_lacking_of_some_types_alone_is_computed_of_others(op: Any, kind: TensorType, way: str) -> None:
    b = Builder()
    b.graph.outputs = {"y": b(op, b.input("x", kind))}
    with pytest.raises(UnsupportedError) as caught:
        check_limits(b.graph, target("gpu"))
    assert [site.advice for site in caught.value.sites] == [
        f"Compute it {way}, or build for a newer runtime or the CPU."
    ]
