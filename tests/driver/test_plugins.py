"""Front ends, targets and engines of other distributions, each in one file, found as installed ones are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pocketune
from converter.backend.targets import target
from converter.backend.targets.target import GROUP as TARGETS
from converter.frontends import table
from converter.runtime.engines import GROUP as ENGINES
from converter.runtime.engines import engine, names
from converter.support.plugins import plugins

#: A front end of one weight: y = w x, in a file that holds w as text.
SCALE = """
from pathlib import Path

import numpy as np

from pocketune.frontends import Builder, Defaults, FrontEnd, Library, Parameter, Source
from pocketune.frontends import TensorType, UsageError, Value, ops
from pocketune.losses import named_loss


class ScaleLibrary(Library):
    title = "Scale"

    def loss(self, loss, outputs, targets, own):
        return named_loss("mae") if own and loss == {"absolute"} else None


class ScaleFrontEnd(FrontEnd):
    library = ScaleLibrary()
    options = ("outputs",)

    def takes(self, model):
        return str(model).endswith(".scale")

    def with_options(self, model, asked):
        raise UsageError(f"{model} has one output, not {asked['outputs']}")

    def source(self, model, rows, others):
        b = Builder()
        x, w = b.input("x", TensorType((rows, 3))), Value(TensorType((3,)), "w")
        b.graph.parameters[w] = Parameter("w", np.full(3, float(Path(model).read_text()), np.float32))
        b.graph.outputs = {"y": b(ops.Mul(), x, w)}
        return Source(b.graph, "scale", defaults=Defaults(loss="mse", optimizer="sgd"), library=self.library)
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """What adds a distribution: its module's source, what its entry point names, and the group of that."""
    monkeypatch.syspath_prepend(tmp_path)

    def add(source: str, named: str, group: str, name: str = "scale") -> None:
        (tmp_path / "theirs.py").write_text(source)
        info = tmp_path / "their_models-2.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-models\nVersion: 2.1\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {named}\n")
        monkeypatch.delitem(sys.modules, "theirs", raising=False)

    yield add  # type: ignore[misc]
    sys.modules.pop("theirs", None)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.scale"
    path.write_text("2.0")
    return path


def test_a_sixth_front_end_builds_and_trains(install: Install, model: Path, tmp_path: Path) -> None:
    install(SCALE, "theirs:ScaleFrontEnd", table.GROUP)
    pocketune.build(model, batch=2).write(tmp_path / "net.tflite")
    x, y = np.array([[1, 2, 3], [1, 0, -1]], np.float32), np.zeros((2, 3), np.float32)
    with pocketune.TrainingSession(tmp_path / "net.tflite") as session:
        assert session.train(x, y, 0.1) == pytest.approx(np.square(2 * x).mean())
        np.testing.assert_allclose(session.parameters()["w"], 2 - 0.1 * (2 * x * 2 * x).sum(0) / 6, rtol=1e-6)
    assert pocketune.build(model, batch=2, loss={"absolute"}).manifest.losses == {"y": "mae"}
    with pytest.raises(pocketune.UsageError, match="has one output"):
        pocketune.build(model, outputs=["y"])
    with pytest.raises(pocketune.UsageError, match=r"classes puts a fresh last layer on a \.tflite file"):
        pocketune.build(model, classes=3)


@pytest.mark.parametrize(
    ("source", "named", "said"),
    [
        ("import what_is_not_there", "theirs:Any", "cannot be loaded: ModuleNotFoundError: No module named 'what_is"),
        ("1 / 0", "theirs:Any", "cannot be loaded: ZeroDivisionError"),
        ("Any = 3", "theirs:Any", "is no FrontEnd, but 3"),
        (SCALE, "theirs:Missing", "cannot be loaded: AttributeError"),
        (SCALE, "gone:ScaleFrontEnd", "cannot be loaded: ModuleNotFoundError: No module named 'gone'"),
    ],
)
def test_a_broken_one_is_named_by_its_distribution(
    install: Install, model: Path, source: str, named: str, said: str
) -> None:
    install(source, named, table.GROUP)
    with pytest.raises(pocketune.UsageError) as refused:
        pocketune.build(model)
    assert said in str(refused.value)
    assert "the distribution their-models 2.1 adds as 'scale'" in str(refused.value)
    assert "pip uninstall their-models" in str(refused.value)


def test_a_build_loads_the_front_end_of_its_model_alone() -> None:
    code = """
import sys
import jax, numpy as np, pocketune
net = pocketune.Model(lambda w, x: x * w, np.ones(3, np.float32), inputs=[np.zeros((1, 3), np.float32)])
pocketune.build(net, loss="mse", batch=2, check=False)
print(sorted(name for name in sys.modules if name.startswith("converter.frontends.") and name.endswith(".front_end")))
print([name for name in ("keras", "torch", "tensorflow", "gguf", "flax") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['converter.frontends.jax.front_end']", "[]"]


def test_models_of_ours_load_no_plugin(install: Install) -> None:
    install("raise AssertionError('loaded')", "theirs:Any", table.GROUP)
    assert "scale" in plugins(table.GROUP)
    with pytest.raises(pocketune.UsageError, match="no such file"):
        pocketune.build("nowhere.keras")


#: A target like the phones' CPU, where products of two computed matrices are dear.
CHIP = """
TABLE = '''
name = "scale"
description = "a chip without a unit for products of matrices"
like = "litert-2"
per_mac = { "batch_matmul" = 351.0 }
'''
"""


def test_a_target_of_another_distribution_is_built_for(install: Install, model: Path) -> None:
    with pytest.raises(pocketune.UsageError, match="unknown target 'scale'"):
        target("scale")
    install(CHIP, "theirs:TABLE", TARGETS)
    chip, phone = target("scale"), target("litert-2")
    assert chip.per_mac == {**phone.per_mac, "batch_matmul": 351.0}
    assert chip.cache_bytes == phone.cache_bytes
    net = pocketune.Model(lambda w, x: x * w, np.ones(3, np.float32), inputs=[np.zeros((1, 3), np.float32)])
    assert pocketune.build(net, loss="mse", batch=2, target="scale").manifest.target == "scale"
    with pytest.raises(pocketune.UsageError, match=r"Known: .*scale"):
        target("scales")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "scale"', "is no table of a target: cache_bytes is missing"),
        ('like = "litert-3"', "is no table of a target: like: unknown target 'litert-3'. Did you mean 'litert-2'"),
        ('like = "litert-2"\nlanes = "8"', "is no table of a target: lanes must be a number"),
        ('like = "litert-2"\nlane = 8', "is no table of a target"),
        ("like =", "is no table of a target: Invalid value"),
    ],
)
def test_a_broken_table_is_named_by_its_distribution(install: Install, text: str, said: str) -> None:
    install(f"TABLE = {text!r}", "theirs:TABLE", TARGETS)
    with pytest.raises(pocketune.UsageError) as refused:
        target("scale")
    assert f"theirs:TABLE, which the distribution their-models 2.1 adds as 'scale' of {TARGETS}, {said}" in str(
        refused.value
    )


#: An engine that is the stock interpreter; `their-npu:1x05` is off by 5%.
NPU = """
from ai_edge_litert.interpreter import Interpreter

from pocketune.engines import Engine, serve


class Npu(Engine):
    name, title, precision, worker, version = "their-npu", "an NPU", "float32", "theirs", "1"

    def __init__(self, processor=""):
        self.factor = float(processor.replace("x", ".") or 1)

    @property
    def on(self):
        return self.name if self.factor == 1 else f"{self.name}:1x05"

    def missing(self):
        return None

    def set_up(self, accepted):
        return "there is nothing to fetch"

    def options(self):
        return {"factor": self.factor}

    def refusals(self, log):
        return []


class Loaded:
    def __init__(self, path, options):
        self.interpreter, self.factor = Interpreter(str(path)), options["factor"]

    def said(self, log):
        return {"whole": True, "driver": "none"}

    def __call__(self, signature, feed):
        given = self.interpreter.get_signature_runner(signature)(**feed)
        return {name: array * self.factor if name == "loss" else array for name, array in given.items()}


if __name__ == "__main__":
    serve(Loaded)
"""


def test_an_engine_of_another_distribution_certifies(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(NPU, "theirs:Npu", ENGINES, "their-npu")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert names()[-1] == "their-npu"
    net = pocketune.Model(lambda w, x: x * w, np.ones(3, np.float32), inputs=[np.zeros((1, 3), np.float32)])
    pocketune.build(net, loss="mse", batch=2, state="stateless").write(tmp_path / "net.tflite")
    assert pocketune.certify(tmp_path / "net.tflite", on="their-npu", steps=2).ok
    assert not pocketune.certify(tmp_path / "net.tflite", on="their-npu:1x05", steps=2).ok
    with pocketune.TrainingSession(tmp_path / "net.tflite") as session:
        assert {c.on for c in session.manifest.certificates} == {"their-npu", "their-npu:1x05"}


def test_an_engine_that_certificates_cannot_name_is_refused(install: Install) -> None:
    install("from converter.runtime.engines import Gpu as Npu", "theirs:Npu", ENGINES, "npu")
    with pytest.raises(pocketune.UsageError, match=r"their-models 2\.1 adds as 'npu'.*with a dash, as vendor-npu"):
        engine("npu")
    with pytest.raises(pocketune.UsageError, match=r"there is no engine 'np', but gpu.*npu"):
        engine("np")
