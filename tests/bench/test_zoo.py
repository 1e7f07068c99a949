"""The model zoo: licences are what packages say, figures those of a training, and the page is what the rows say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from origins import Package, licence_of, package
from zoo.__main__ import card, measured
from zoo_document import document
from zoo_models import MODELS, Model, Rows, parted

from converter.runtime import TrainingSession
from examples import mlp
from tests.bench.conftest import BENCH

PAGE, RESULTS = BENCH.parents[1] / "docs" / "zoo.md", BENCH / "zoo" / "results.json"


@pytest.mark.parametrize(
    ("metadata", "licences", "expected"),
    [
        ("License-Expression: BSD-3-Clause\nLicense: other", [], "BSD-3-Clause"),
        ("License: MIT", [], "MIT"),
        ("License: SPDX-License-Identifier: Zlib", [], "Zlib"),
        (
            "License: UNKNOWN\nClassifier: License :: OSI Approved :: Apache Software License",
            ["MIT License"],
            "Apache Software License",
        ),
        ("License: UNKNOWN", ["\nMIT License\n\nCopyright"], "MIT License"),
        ("Name: a", ["Copyright somebody"], "not named by the package"),
        ("Name: a\n\nLicense: MIT", [], "not named by the package"),
    ],
)
def test_licences_are_those_that_packages_name(metadata: str, licences: list[str], expected: str) -> None:
    assert licence_of(metadata, licences) == expected


def test_a_package_that_was_unpacked(tmp_path: Path) -> None:
    folder = tmp_path / "net==1.0" / "net-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Name: net\nHome-page: https://example.org/net\n")
    (folder / "LICENSE").write_text("MIT License\n")
    assert package("net==1.0", tmp_path) == ("net 1.0", "MIT License", "https://example.org/net")
    with pytest.raises(FileNotFoundError, match="run scripts/pretrained"):
        package("other==1.0", tmp_path)
    assert "BSD" in package("scikit-learn").licence


def test_what_is_judged_is_not_learned_from() -> None:
    x, y = np.arange(60, dtype=np.float32)[:, None], np.arange(60) % 3
    learned, judged = parted(x, y, of_each=4, held_out=20)
    assert np.bincount(learned.y).tolist() == [4, 4, 4]
    assert judged.x[:, 0].tolist() == list(range(20))
    assert learned.x.min() >= 20


@pytest.mark.quick
def test_figures_are_those_of_a_training(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((300, 6), np.float32)
    rows = Rows(x, (x[:, 0] > x[:, 1]).astype(np.int32))
    learned, judged = parted(*rows, of_each=40, held_out=100)
    row = Model(
        "points", "", "", "", "", lambda: mlp.build((6, 8, 2)), lambda: (learned, judged), 0.01, 10, "head", "head"
    )
    said = card(row, Package("weights 1", "MIT", "https://example.org"), Package("data 2", "CC BY 4.0", "here"))
    found = measured(row.build(), learned, judged, row, said, tmp_path / "points.tflite")
    with TrainingSession(tmp_path / "points.tflite") as session:
        shown = session.manifest.card
        assert (shown["license"], shown["source"]) == ("MIT", "weights 1, https://example.org")
        assert shown["datasets"] == "data 2 (CC BY 4.0), here"
        assert found["before"] == np.mean(session.infer(judged.x).argmax(1) == judged.y)
        session.fit(*learned, epochs=10, learning_rate=0.01, seed=0, progress=False)
        assert found["after"] == np.mean(session.infer(judged.x).argmax(1) == judged.y) > found["before"]
    assert found["trained_parameters"] == 8 * 2 + 2
    assert found["program_bytes"] == (tmp_path / "points.tflite").stat().st_size
    assert 0 < found["step_ms"] < 1000 * found["training_seconds"]


def test_the_page_is_what_the_rows_say() -> None:
    rows = json.loads(RESULTS.read_text())["rows"]
    assert [row["name"] for row in rows] == [*MODELS]
    assert document(rows) == PAGE.read_text()
