"""The engines themselves: what is said of them without any, and tiny programs on those that this machine has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.engines import engine
from converter.engines.debian import fetch
from converter.engines.engine import Refusal
from converter.errors import UsageError
from converter.program_file import read_program
from tests.certification.test_certify import built

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
"""


def here(on: str) -> Any:
    missing = engine(on).missing()
    return pytest.mark.skipif(missing is not None, reason=f"{on}: {missing}")


def test_the_gpus_log_is_read() -> None:
    assert engine("gpu").refusals(LOG) == [
        Refusal("CONV_2D", "Expected 1 or 2 input tensor(s), but node has 3 runtime inputs."),
        Refusal("BROADCAST_TO", "Operation is not supported."),
    ]
    assert engine("gpu").refusals("INFO: all is well") == []


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
    path.write_bytes(convolution(state="split"))
    certificate = converter.certify(path, on="hexagon:SM8650", steps=1)
    assert certificate.ok, certificate.failures
    assert certificate.floor is not None
    assert certificate.floor > 0
