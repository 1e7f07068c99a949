"""The engines themselves: what is said of them without any, and tiny programs on those that this machine has."""

from __future__ import annotations

import json
import re
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.program.file import read_program
from converter.program.flatbuffer.schema import generated
from converter.program.layers import Layers
from converter.runtime.engines import engine
from converter.runtime.engines.android import MAVEN
from converter.runtime.engines.android import VERSION as ANDROID
from converter.runtime.engines.debian import fetch
from converter.runtime.engines.engine import Refusal
from converter.runtime.engines.web import PACKAGES, VERSION
from converter.runtime.engines.work import Task
from converter.runtime.engines.workers.chromium import Browser
from converter.support.errors import UsageError
from converter.tools.certify import localize
from tests.tools.certify.test_certify import built
from tests.tree import ROOT

#: As LiteRT's GPU engine writes it.
LOG = """\
INFO: [delegate_webgpu.cc:342] Create WebGPU environment (use_low_power=0, enable_host_mapped_pointer=1)
ERROR: Following operations are not supported by GPU delegate:
CONV_2D: Expected 1 or 2 input tensor(s), but node has 3 runtime inputs.
BROADCAST_TO: Operation is not supported.
115 operations will run on the GPU, and the remaining 28 operations will run on the CPU.
I0000 00:00:1795375387.739322   29484 delegate_kernel.cc:984] Initializing WebGPU-based API from graph.
ERROR: Following operations are not supported by GPU delegate:
CONV_2D: Expected 1 or 2 input tensor(s), but node has 3 runtime inputs.
24 operations will run on the GPU, and the remaining 5 operations will run on the CPU.
INFO: Created TensorFlow Lite XNNPACK delegate for CPU.
E1123 07:02:31 755312 delegate_webgpu.cc:373] Failed to create litert::ml_drift::DelegateKernelLiteRt: INVALID: no
"""


def here(on: str) -> Any:
    missing = engine(on).missing()
    return pytest.mark.skipif(missing is not None, reason=f"{on}: {missing}")


def test_the_gpus_log_is_read() -> None:
    for on in ("gpu", "web"):
        assert engine(on).refusals("INFO: all is well") == []
        assert engine(on).refusals(LOG) == [
            Refusal("CONV_2D", "Expected 1 or 2 input tensor(s), but node has 3 runtime inputs."),
            Refusal("BROADCAST_TO", "Operation is not supported."),
            Refusal("", "it gave up: INVALID: no"),
        ]


def test_processors_that_are_not_known_are_refused() -> None:
    assert engine("hexagon").on == "hexagon:SM8650"
    assert engine("hexagon:SM8750").on == "hexagon:SM8750"
    with pytest.raises(UsageError, match="Did you mean 'SM8550'"):
        engine("hexagon:SM8555")


def test_qualcomms_libraries_are_fetched_only_by_who_accepts_their_licence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POCKETUNE_ENGINES", str(tmp_path / "engines"))
    with pytest.raises(UsageError, match=r"licence.*--accept-licence"):
        engine("hexagon").set_up(accepted=False)
    assert not (tmp_path / "engines").exists()


def test_a_package_that_cannot_be_had_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="apt-get is needed"):
        fetch(("libvulkan1",), ("libvulkan.so.1",), tmp_path / "engines/vulkan")
    assert not (tmp_path / "engines/vulkan").exists()


def test_the_browser_runs_what_the_page_is_built_with() -> None:
    web = ROOT / "web"
    assert json.loads((web / "package.json").read_text())["dependencies"][PACKAGES[0]] == VERSION
    locked = json.loads((web / "package-lock.json").read_text())["packages"]
    assert [locked[f"node_modules/{package}"]["version"] for package in PACKAGES] == [VERSION] * len(PACKAGES)


def test_androids_library_is_what_apps_depend_on() -> None:
    pom = (ROOT / "android_app/pom.xml").read_text()
    assert f"<tflite.version>{ANDROID}</tflite.version>" in pom
    assert f"<version>{re.search(r'dependency-plugin:([^:]+):', MAVEN)[1]}</version>" in pom  # type: ignore[index]


def test_androids_library_is_set_up_where_it_runs_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCKETUNE_ENGINES", str(tmp_path / "engines"))
    assert "engines android" in (engine("android").missing() or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="mvn is needed"):
        engine("android").set_up(accepted=False)
    assert not any((tmp_path / "engines").iterdir())
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert "x86-64 only" in (engine("android").missing() or "")
    with pytest.raises(UsageError, match="x86-64 only"):
        engine("android").set_up(accepted=False)


def test_what_the_browser_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("POCKETUNE_ENGINES", str(tmp_path / "engines"))
    monkeypatch.delenv("CHROMIUM", raising=False)
    assert "no Chromium" in (engine("web").missing() or "")
    monkeypatch.setenv("CHROMIUM", sys.executable)
    assert "engines web" in (engine("web").missing() or "")
    with pytest.raises(UsageError, match="npm is needed"):
        engine("web").set_up(accepted=False)
    assert not any((tmp_path / "engines").iterdir())
    for package in PACKAGES:
        file = tmp_path / "engines/web/node_modules" / package / "package.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"version": VERSION}))
    assert engine("web").missing() is None
    file.write_text(json.dumps({"version": "2.4.0"}))
    assert engine("web").missing() is not None


#: A browser that knows its version, tells of an event before it says so, and goes at any other command.
BROWSER = """\
import json, os
rest, out = b"", lambda message: os.write(4, json.dumps(message).encode() + b"\\0")
while True:
    while b"\\0" not in rest:
        rest += os.read(3, 5)
    message, _, rest = rest.partition(b"\\0")
    command = json.loads(message)
    if command["method"] == "Browser.getVersion":
        out({"method": "Event", "params": {"text": "heard"}})
        out({"id": command["id"], "result": {"product": "Chrome/1.2"}})
    elif command["method"] == "Unknown":
        out({"id": command["id"], "error": {"message": "what?"}})
    else:
        print("goodbye", flush=True)
        break
"""


def test_a_browser_is_spoken_to_through_a_pipe(tmp_path: Path) -> None:
    command = tmp_path / "browser"
    command.write_text(f"#!{sys.executable}\n{BROWSER}")
    command.chmod(0o700)
    browser, heard = Browser(str(command), (), tmp_path), list[Any]()
    browser.hear(lambda method, said: heard.append((method, said)))
    assert browser.version == "1.2"
    assert heard == [("Event", {"text": "heard"})]
    with pytest.raises(RuntimeError, match="refuses Unknown: what"):
        browser.command("Unknown")
    assert browser.is_there
    with pytest.raises(RuntimeError, match=r"ended.*goodbye"):
        browser.command("Crash")
    browser.close()
    assert not browser.is_there


def convolution(**options: Any) -> bytes:
    """A convolution that trains with its bias, as the CPU likes it."""
    rng = np.random.default_rng(0)
    params = {"conv": {"w": rng.standard_normal((3, 3, 1, 4), np.float32) / 3, "b": np.zeros(4, np.float32)}}

    def apply(params: Any, x: Any) -> Any:
        with jax.named_scope("conv"):
            y = jax.lax.conv_general_dilated(
                x, params["conv"]["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            return jnp.mean(jax.nn.relu(y + params["conv"]["b"]), (1, 2))

    model = jax_frontend.Model(apply, params, inputs=[jax.ShapeDtypeStruct((1, 6, 6, 1), np.float32)])
    settings = {"batch": 2, "optimizer": optax.sgd(1.0), "signatures": ["train"], "check": False, **options}
    return converter.build(model, **settings).data


@here("web")
def test_the_browser_runs_a_step_on_both_of_its_accelerators(tmp_path: Path) -> None:
    path = tmp_path / "p.tflite"
    path.write_bytes(convolution(target="web"))
    certificate = converter.certify(path, on="web", steps=1)
    assert certificate.ok, certificate.failures
    assert "WebGPU on" in certificate.driver
    assert "WebAssembly, Chromium" in certificate.driver
    assert read_program(path).manifest.is_certified("web", "LiteRT.js", certificate.version)


@here("web")
def test_what_webgpu_refuses_is_said_by_layer(tmp_path: Path) -> None:
    path = tmp_path / "p.tflite"
    path.write_bytes(convolution(state="stateless"))
    certificate = converter.certify(path, on="web", steps=1)
    assert not certificate.whole
    assert {(f.layer, f.operator) for f in certificate.failures} == {("conv", "CONV_2D")}
    assert certificate.failures[0].what.startswith("WebGPU: refused: Expected 1 or 2 input tensor(s)")
    assert certificate.update_error is not None
    assert certificate.update_error < 1e-4  # what was refused ran in WebAssembly


@here("gpu")
def test_the_gpu_runs_a_step(tmp_path: Path) -> None:
    path = tmp_path / "p.tflite"
    path.write_bytes(built())
    certificate = converter.certify(path, on="gpu", steps=2)
    assert certificate.ok, certificate.failures
    assert certificate.driver
    assert read_program(path).manifest.is_certified("gpu", certificate.engine, certificate.version)


@here("gpu")
def test_what_the_gpu_refuses_is_said_by_layer(tmp_path: Path) -> None:
    path = tmp_path / "p.tflite"
    path.write_bytes(convolution(state="stateless"))
    certificate = converter.certify(path, on="gpu", steps=1)
    assert not certificate.whole
    assert {(f.layer, f.operator) for f in certificate.failures} == {("conv", "CONV_2D")}
    assert "runtime inputs" in certificate.failures[0].what


@here("hexagon")
def test_hexagon_computes_gradients(tmp_path: Path) -> None:
    path = tmp_path / "p.tflite"
    path.write_bytes(convolution(target="hexagon"))
    certificate = converter.certify(path, on="hexagon:SM8650", steps=1)
    assert certificate.ok, certificate.failures
    assert certificate.floor is not None
    assert certificate.floor > 0


@here("android")
@pytest.mark.parametrize("options", [{"state": "variables"}, {"state": "variables", "micro_batch": 2}, {}])
def test_androids_library_runs_a_step(options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "p.tflite"
    path.write_bytes(built("adam", signatures=("train", "evaluate", "infer"), **options))
    certificate = converter.certify(path, on="android", steps=2)
    assert certificate.ok, certificate.failures
    assert certificate.update_error is not None
    assert certificate.update_error < 1e-4
    assert read_program(path).manifest.is_certified("android", certificate.engine, ANDROID)


@here("android")
def test_androids_library_runs_int8(tmp_path: Path) -> None:
    """Where the processor has AVX-512 its kernels read 64 aligned bytes of memory that it asked to be aligned to 32."""
    rng, path = np.random.default_rng(0), tmp_path / "p.tflite"
    params = {"first": rng.standard_normal((3, 3, 3, 16), np.float32), "last": rng.standard_normal((16, 3), np.float32)}

    def apply(params: Any, x: Any) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, params["first"], (1, 1), "SAME", dimension_numbers=layout)
        return jax.nn.relu(x).mean((1, 2)) @ params["last"]

    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 8, 8, 3), np.float32)])
    x = rng.standard_normal((16, 8, 8, 3)).astype(np.float32)
    options = {"update": {"last": 1}, "frozen": "int8", "calibration": x, "target": "tflite-2.16", "check": False}
    for _ in range(4):  # by chance it was aligned
        path.write_bytes(converter.build(model, loss="mse", optimizer=optax.sgd(0.1), batch=4, **options).data)
        certificate = converter.certify(path, on="android", steps=1)
        assert certificate.ok, certificate.failures


@here("android")
def test_operators_that_androids_library_lacks_are_said_by_layer() -> None:
    """TANH becomes a kind that the library has no kernel of."""
    program, android = read_program(built()), engine("android")
    data, lacking = bytearray(program.data), generated.BuiltinOperator.STABLEHLO_COSINE
    model = generated.Model.GetRootAs(data, 0)
    codes = [model.OperatorCodes(number)._tab for number in range(model.OperatorCodesLength())]
    (tanh,) = (table for table in codes if data[table.Pos + table.Offset(4)] == generated.BuiltinOperator.TANH)
    data[tanh.Pos + tanh.Offset(4)] = generated.BuiltinOperator.PLACEHOLDER_FOR_GREATER_OP_CODES
    struct.pack_into("<i", data, tanh.Pos + tanh.Offset(10), lacking)
    program = replace(program, data=bytes(data))
    outcome = android.run([Task(program.data)])[0]
    assert outcome.error
    (failure,) = localize.refused(android, Layers(program).entries, android.refusals(outcome.log))
    assert (failure.layer, failure.operator) == ("second", "STABLEHLO_COSINE")
    assert "has no version 1 of it" in failure.what
