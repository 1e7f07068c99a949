"""What a file holds that may be trained, and what stands in the place of its end: maps are pooled, and places said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pocketune
from converter.cli.inspection import read_survey
from converter.cli.tables import Results
from converter.frontends import tflite as tflite_frontend
from converter.frontends.tflite.survey import survey
from converter.ir import evaluate
from converter.support.errors import UsageError
from tests.tflite_frontend.written import Operator, file_of

CONV = ("Conv2DOptions", {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1})
WEIGHTS = {
    name: np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
    for name, shape in {"stem/w": (8, 3, 3, 2), "stem/b": (8,), "late/w": (4, 1, 1, 8), "late/b": (4,)}.items()
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of two convolutions, the last of which gives four numbers at each of 6 x 6 places."""
    tensors = {
        "x": ((1, 6, 6, 2), "float32"),
        "stem/y": ((1, 6, 6, 8), "float32"),
        "late/y": ((1, 6, 6, 4), "float32"),
        **WEIGHTS,
    }
    operators: list[Operator] = [
        ("CONV_2D", ("x", "stem/w", "stem/b"), ("stem/y",), CONV),
        ("CONV_2D", ("stem/y", "late/w", "late/b"), ("late/y",), CONV),
    ]
    file = tmp_path / "net.tflite"
    file.write_bytes(file_of(tensors, operators, outputs=("late/y",)))
    return file


def test_layers_and_good_places_to_cut(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = survey(path)
    assert [(layer.name, layer.operators, layer.shape, layer.weights) for layer in found.layers] == [
        ("stem", ("CONV_2D",), (1, 6, 6, 8), 152),
        ("late", ("CONV_2D",), (1, 6, 6, 4), 36),
    ]
    assert [(cut.name, cut.shape) for cut in found.cuts] == [("stem/y", (1, 6, 6, 8))]
    read = read_survey(path)
    assert read is not None
    assert read.to_json()["signatures"][0]["cuts"][0]["name"] == "stem/y"
    Results().contents(read)
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("no training program", "float32[1, 6, 6, 2]", "stem", "Good places to cut"))


def test_behind_a_map_a_fresh_layer_reads_the_mean_of_its_places(path: Path) -> None:
    model = tflite_frontend.Model(path, cut="stem", classes=3)
    graph, notes = model.graph(2)
    assert {p.name: p.value.shape for p in graph.parameters.values()}["head/kernel"] == (3, 8)
    assert any("the mean over 6 x 6 places" in note.why for note in notes)
    whole, _ = tflite_frontend.Model(path, cut="stem").graph(2)
    x = np.random.default_rng(0).standard_normal((2, 6, 6, 2)).astype(np.float32)
    features = evaluate(whole, [x])[0]["output"].mean((1, 2))
    kernel = next(p.value for p in graph.parameters.values() if p.name == "head/kernel")
    shares = np.exp(features @ kernel.T)
    np.testing.assert_allclose(evaluate(graph, [x])[0]["output"], shares / shares.sum(1, keepdims=True), rtol=1e-5)


def test_a_layer_at_each_place_is_said(path: Path) -> None:
    program = pocketune.build(path, classes=3, update="head", batch=2, check=False, loss="mse")
    (note,) = (note for note in program.notes if note.subject == "head")
    assert "at each of 6 x 6 places, so labels are [2, 6, 6]" in note.why


def test_a_wrong_cut_lists_near_names(path: Path) -> None:
    with pytest.raises(UsageError, match=r"(?s)Did you mean 'stem'.*good places to cut: .*inspect"):
        tflite_frontend.Model(path, cut="stemm", classes=3).graph(2)
