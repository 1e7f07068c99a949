"""Sessions on accelerators: on the real engines where these are set up, and what a session does with any."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import converter
import converter.runtime.interpreters.gpu
from converter.runtime import TrainingSession
from converter.runtime.engines import Engine
from converter.runtime.engines.gpu import Gpu
from converter.runtime.engines.hexagon import Hexagon
from converter.runtime.engines.web import Web
from converter.runtime.interpreters.entry import Report, SignatureEntry
from converter.runtime.interpreters.interpreter import InterpreterEngine
from converter.support.errors import UsageError
from tests.runtime.programs import BATCH, EXAMPLES, program

#: What LiteRT wrote of a LeNet whose convolutions have runtime filters and biases, on SwiftShader.
LOG = """I0000 environment.cc:532] Selected adapter: SwiftShader Device (Subzero), arch=swiftshader, vendor=google, \
backend=Vulkan, adapterType=CPU / Software
ERROR: Following operations are not supported by GPU delegate:
CONV_2D: Expected 1 or 2 input tensor(s), but node has 3 runtime inputs.
95 operations will run on the GPU, and the remaining 28 operations will run on the CPU.
ERROR: Following operations are not supported by GPU delegate:
CONV_2D: Expected 1 or 2 input tensor(s), but node has 3 runtime inputs.
8 operations will run on the GPU, and the remaining 3 operations will run on the CPU.
"""


def here(engine: Engine) -> Any:
    return pytest.mark.skipif(engine.missing() is not None, reason=str(engine.missing()))


@pytest.mark.parametrize(
    ("accelerator", "runs", "state"),
    [
        pytest.param("gpu", "gpu", "stateless", marks=here(Gpu())),
        pytest.param("gpu", "gpu", "split", marks=here(Gpu())),
        pytest.param("web", "gpu", "stateless", marks=here(Web())),
        pytest.param("web:wasm", "cpu", "variables", marks=here(Web())),
    ],
)
def test_steps_are_those_of_the_cpu(accelerator: str, runs: str, state: str) -> None:
    built = program("mlp", state, "adam").data
    with TrainingSession(built, accelerator=accelerator) as gpu, TrainingSession(built) as cpu:
        assert (gpu.report.runs, gpu.report.whole, gpu.report.left) == (runs, True, 0)
        assert gpu.report.driver
        assert gpu.report.on_cpu == (("apply",) if state == "split" else ())
        for seed in range(5):
            x, y = EXAMPLES["mlp"].data(BATCH, seed)
            assert gpu.train(x, y, 0.01) == pytest.approx(cpu.train(x, y, 0.01), rel=1e-5)
        for tensor, array in cpu.state().items():
            np.testing.assert_allclose(gpu.state()[tensor], array, atol=1e-4 * np.abs(array).max(), err_msg=tensor)
        np.testing.assert_allclose(gpu.infer(x[:3]), cpu.infer(x[:3]), atol=1e-4)
        assert gpu.evaluate(x, y) == pytest.approx(cpu.evaluate(x, y), rel=1e-4)


@here(Hexagon())
def test_gradients_of_hexagon_train_as_those_of_the_cpu() -> None:
    built = converter.build(EXAMPLES["mlp"].model(), batch=BATCH, micro_batch=4, target="hexagon", check=False).data
    with TrainingSession(built, accelerator="hexagon") as emulated, TrainingSession(built) as cpu:
        assert (emulated.report.runs, emulated.report.emulated, emulated.report.on_cpu) == ("npu", True, ("apply",))
        first = cpu.state()
        for seed in range(10):
            x, y = EXAMPLES["mlp"].data(BATCH, seed)
            assert emulated.train(x, y, 0.1) == pytest.approx(cpu.train(x, y, 0.1), rel=1e-2)
        for tensor, array in cpu.state().items():
            moved = np.linalg.norm(array - first[tensor])
            assert np.linalg.norm(emulated.state()[tensor] - array) < 0.05 * moved, tensor


def test_the_update_of_a_split_step_stays_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, bool]] = []
    built = program(state="split").data

    class Accelerator(InterpreterEngine):
        """The interpreter, whose entries say where they are."""

        def __init__(self, program: Any, threads: int) -> None:
            super().__init__(program, threads, True)
            self.report = Report(runs="gpu")
            for entry in self._entries.values():
                entry.accelerated = True  # type: ignore[attr-defined]

    def noted(entry: SignatureEntry) -> None:
        called.append((entry.name, hasattr(entry, "accelerated")))
        invoke(entry)

    invoke = SignatureEntry.invoke
    monkeypatch.setattr(converter.runtime.interpreters.gpu, "GpuEngine", Accelerator)
    monkeypatch.setattr(SignatureEntry, "invoke", noted)
    x, y = EXAMPLES["mlp"].data(BATCH)
    with TrainingSession(built, accelerator="gpu") as session:
        session.train(x, y)
        session.evaluate(x, y)
        session.infer(x)
        assert session.report == Report(runs="gpu", on_cpu=("apply",))
    assert called == [("gradients", True), ("apply", False), ("evaluate", True), ("infer", True)]


def test_what_is_left_to_the_cpu_is_reported() -> None:
    model: Any = SimpleNamespace(is_fully_accelerated=lambda: False)
    report = converter.runtime.interpreters.gpu._report(model, Gpu(), LOG)
    assert (report.driver, report.emulated, report.whole, report.left) == (
        "SwiftShader Device (Subzero)",
        True,
        False,
        31,
    )
    assert "31 operators on the CPU (CONV_2D: Expected 1 or 2 input" in str(report)


@pytest.mark.parametrize(
    ("state", "options", "message"),
    [
        ("variables", {"accelerator": "gpu"}, "keeps its state in variables, which gpu does not run"),
        ("stateless", {"accelerator": "gpu", "weight_cache": "."}, "leave it or accelerator='gpu' out"),
        ("stateless", {"accelerator": "hexagon"}, "rounds to float16, in which small updates are lost"),
        ("variables", {"accelerator": "web"}, "keeps its state in variables, which web does not run"),
        ("stateless", {"accelerator": "web:webgl"}, "'web:webgl' is none of cpu, .*web:wasm"),
        ("stateless", {"accelerator": "gpus"}, "'gpus' is none of cpu, gpu, .* Did you mean"),
    ],
)
def test_what_no_gpu_runs(state: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainingSession(program(state=state).data, **options)
    with TrainingSession(program(state=state).data) as session:
        assert (session.report.runs, str(session.report)) == ("cpu", "XNNPACK")
