"""What the page says: against the manifest, with names of layers that mean harm, and of a training."""

from __future__ import annotations

import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import converter
from converter.program.file import read_program
from converter.program.manifest import Certificate, CertificateFailure
from converter.runtime import Journal, TrainingSession
from converter.support.errors import UsageError
from converter.support.words import size
from converter.tools.certify.signing import sign
from converter.tools.report.contents import contents_of
from converter.tools.report.overlay import overlays
from converter.tools.report.tables import costs
from jax_frontend import Model
from tests.models.zoo import CASES
from tests.tools.report.programs import program

#: Whatever a pytree may be called.
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}'\"&amp;\u2028"


class Page(HTMLParser):
    """The elements of a page, its texts, and its scripts by type."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.cells: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = self._inside if tag == "br" else tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append((self.tags[-1][1].get("type"), data))
        elif self._inside in ("td", "th", "dd"):
            self.cells.append(data)

    @property
    def data(self) -> Any:
        return json.loads("".join(text for kind, text in self.scripts if kind == "application/json"))


def page_of(data: bytes, folder: Path, /, **options: Any) -> Page:
    return Page(converter.report(data, folder / "report.html", **options).read_text(encoding="utf-8"))


def test_it_says_what_the_manifest_says(tmp_path: Path) -> None:
    built = program("encoder")
    page = page_of(built.data, tmp_path)
    for row in built.manifest.update.table:
        assert row.parameter in page.cells
        assert row.why in page.cells
    for signature in built.manifest.signatures.values():
        assert {spec.name for spec in signature.inputs if spec.role != "state"} <= set(page.cells)
    for figure in ("arena_bytes", "state_bytes", "resident_bytes", "packed_bytes"):
        assert size(built.costs[figure]) in page.cells
    (call,) = page.data["memory"]
    assert call["arena"] + call["workspace"] == built.costs["arena_bytes"]
    assert {row.layer for row in built.report if row.alternatives} <= set(page.cells)


def test_it_loads_nothing(tmp_path: Path) -> None:
    page = page_of(program("mlp").data, tmp_path)
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "base")
        assert not attributes.keys() & {"src", "srcset", "action", "data"}
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert (tmp_path / "report.html").stat().st_size < 3 << 20


def hostile() -> bytes:
    params = {HOSTILE: {"w": np.eye(4, dtype=np.float32)}, "head": np.eye(4, 3, dtype=np.float32)}

    def apply(params: Any, x: Any) -> Any:
        return jnp.tanh(x @ params[HOSTILE]["w"]) @ params["head"]

    model = Model(apply, params, [jax.ShapeDtypeStruct((1, 4), np.float32)])
    return converter.build(model, batch=2, check=False).data


def test_names_of_layers_do_nothing(tmp_path: Path) -> None:
    plain, page = page_of(program("mlp").data, tmp_path), page_of(hostile(), tmp_path)
    assert len(page.scripts) == len(plain.scripts)
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert any(HOSTILE in part["layer"] for part in page.data["graph"])
    assert not any("49" in part["layer"] for part in page.data["graph"])


def test_a_training_and_its_state(tmp_path: Path) -> None:
    built, (x, y) = program("mlp"), CASES["mlp"].batch(32, 0)
    with TrainingSession(built.data) as session, Journal(tmp_path / "run.jsonl") as journal:
        history = session.fit(x, y, epochs=3, learning_rate=0.1, validation=(x, y), listener=journal, progress=False)
        trained, well = session.parameters(), session.evaluate(x, y)
        session.save(tmp_path / "mine.state")
        session.reset()
        before = session.parameters()
    given = {"state": tmp_path / "mine.state", "runs": [tmp_path / "run.jsonl"], "data": (x, y)}
    page = page_of(built.data, tmp_path, **given)
    assert f"{100 * well['accuracy']:.1f} %" in page.cells
    (run,) = page.data["runs"]
    assert run["x"] == list(range(12))
    curves = {curve["name"]: curve["y"] for curve in run["curves"]}
    assert np.mean(curves["loss"][:4]) == pytest.approx(history["loss"][0])
    assert [v for v in curves["validation loss"] if v is not None] == history["validation_loss"]
    for name, weight in trained.items():
        moved = np.linalg.norm(weight.astype(np.float64) - before[name])
        norm = np.linalg.norm(before[name].astype(np.float64))
        assert (f"{moved / norm:.2%}" if norm else "from zero") in page.cells
    with pytest.raises(UsageError, match="another program"):
        page_of(program("encoder").data, tmp_path, state=tmp_path / "mine.state")


def test_certificates_are_shown(tmp_path: Path) -> None:
    path = program("mlp").write(tmp_path / "m.tflite")
    failure = CertificateFailure("layers/1", "BATCH_MATMUL", "it is refused")
    sign(
        path,
        Certificate(
            "gpu", "WebGPU", "2.3", "", "2026-01-02T03:04:05Z", 3, False, False, "float32", 0.25, failures=(failure,)
        ),
    )
    cells = page_of(path.read_bytes(), tmp_path).cells
    assert {"gpu", "not certified", "in parts", "0.25"} <= set(cells)
    assert str(failure) in " ".join(cells)


def test_results_of_a_device(tmp_path: Path) -> None:
    """Lines as scripts/harness/log.py writes them."""
    variant = {"build": "", "program": "m.tflite", "sha256": "", "batch": 8, "micro_batch": 8, "threads": 1}
    lines = [
        {"type": "run", "plan": "mine", "facts": {"name": "SERIAL", "model": "Pixel 8"}, "setup": {"warmup": 1},
         "time": "now"},
        {"type": "result", "variant": variant, "runs": "cpu", "ms": [[9.0, 2.0, 4.0]], "losses": [[3.0, 2.0, 1.0]],
         "peak_kib": 2048, "discarded": None},
        {"type": "result", "variant": variant, "runs": "cpu", "ms": [[90.0, 90.0, 90.0]], "losses": [[3.0, 2.0, 1.0]],
         "peak_kib": 2048, "discarded": "hot"},
    ]  # fmt: skip
    (tmp_path / "device.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"cut sho')
    page = page_of(program("mlp").data, tmp_path, runs=[tmp_path / "device.jsonl"])
    assert page.data["runs"][0]["rows"] == [["m.tflite, batch 8, cpu, 1 thread", "3", "1", "2 MiB"]]
    for text, said in (
        ("{}\n", "holds no steps"),
        ("7x\n", ":1 is no JSON"),
        ('{"type": "step"}\n', "not as it should"),
    ):
        (tmp_path / "bad.jsonl").write_text(text)
        with pytest.raises(UsageError, match=said):
            page_of(program("mlp").data, tmp_path, runs=[tmp_path / "bad.jsonl"])


def test_node_data_for_model_explorer() -> None:
    """`{graph: {results: {node: {value}}}}`: graphs by subgraph, nodes by the operator's place."""
    contents = contents_of(read_program(program("lenet").data))
    files = overlays(contents)
    assert files.keys() == {"layer", "phase", "cost", "flops", "memory"}
    for data in files.values():
        assert list(data) == ["train"]
        assert list(data["train"]["results"]) == [str(i) for i in range(len(contents.operators["train"]))]
    alive = [result["value"] for result in files["memory"]["train"]["results"].values()]
    assert max(alive) == contents.peaks()[0].nbytes


def test_jinja_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UsageError, match=r"pip install 'pocketune\[report\]'"):
        page_of(program("mlp").data, tmp_path)


def test_the_dearest_layer_is_first_and_folded_layers_are_one_row() -> None:
    contents = contents_of(read_program(program("vit").data))
    table = costs(contents)
    shares = [row.share for row in table.rows]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)
    assert all(any(cell.value for cell in row.cells) for row in table.rows)
    assert {*table.folded, *(row.layer for row in table.rows)} - {"(compiler)"} == {*contents.layers} - {""}


def test_two_programs_side_by_side(tmp_path: Path) -> None:
    sparse, case = program("lenet"), CASES["lenet"]
    full = converter.build(case.model(), loss=case.loss, update="full", optimizer="adam", batch=8, check=False)
    page = page_of(sparse.data, tmp_path, beside=full.data)
    assert {"scheme *", "optimizer *", "batch"} <= set(page.cells)
    for name in ("state_bytes", "arena_bytes"):
        assert f"{full.costs[name] / sparse.costs[name]:.2f} x" in page.cells
        assert size(full.costs[name]) in page.cells
    with pytest.raises(UsageError, match="the same program"):
        page_of(sparse.data, tmp_path, beside=sparse.data)
