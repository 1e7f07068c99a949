"""Where the work of a training step is done, from the interpreter's own execution plan and the emitted operators."""

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema

import converter
from converter.backend.lowering.state import with_variables
from converter.ir import Node
from converter.ir.graph import dependents
from tests.backend.stock import interpreter
from tests.models.execution import with_steps
from tests.models.zoo import CASES

#: Nets that TensorFlow runs in the usual run; in the slow one it runs all.
QUICK = ("lenet", "encoder", "llama")


def flops(node: Node) -> int:
    return node.op.cost(tuple(v.type for v in node.inputs), tuple(v.type for v in node.outputs)).flops


@pytest.fixture(scope="module")
def mobilenet() -> converter.Program:
    case = CASES["mobilenetv2-0.35"]
    return converter.build(case.model(), update=case.update("sparse"), batch=4, check=False)


def test_frozen_layers_keep_their_fast_kernels(mobilenet: converter.Program) -> None:
    step = with_variables(mobilenet.signatures["train"])
    forward = Counter()
    for node, done in with_steps(step, mobilenet.data):
        trained = node.op.code in ("CONV_2D", "BATCH_MATMUL") and node.inputs[1] not in step.constants
        if node.origin.phase == "forward" and not trained:
            forward[done.delegated] += flops(node)
    assert forward[True] >= 0.95 * sum(forward.values()) > 0


@pytest.mark.quick
def test_nothing_below_the_earliest_trained_layer_has_a_backward_op(mobilenet: converter.Program) -> None:
    step = mobilenet.signatures["train"]
    trained = {row.parameter.partition("/")[0] for row in mobilenet.table if row.fraction}
    # In the order of the model, not of the schedule, which may prepare the loss's targets first.
    inference = mobilenet.signatures["infer"]
    layers = list(dict.fromkeys(node.origin.layer for node in inference.nodes if node.origin.layer))
    earliest = min(layers.index(layer) for layer in layers if layer in trained)
    backward = {node.origin.layer for node in step.nodes if node.origin.phase == "backward"}
    assert layers[earliest].startswith("block_10_expand")
    assert not backward & set(layers[:earliest])
    assert backward


def test_frozen_weights_are_constants_of_the_file(mobilenet: converter.Program) -> None:
    step = mobilenet.signatures["train"]
    names = {p.name for p in step.parameters.values()}
    assert names == {row.parameter for row in mobilenet.table if row.fraction}
    variable = dependents(step, step.parameters)
    for node in step.nodes:
        if node.op.code in ("CONV_2D", "DEPTHWISE_CONV_2D") and node.origin.phase == "forward":
            assert node.inputs[1] in step.constants or node.inputs[1] in variable


def test_channel_sparse_is_narrow() -> None:
    """FLOPs and residual bytes of a split layer fall with the ratio, counted from the emitted operators."""
    case = CASES["mobilenetv2-1.0"]
    work, residual, sizes = {}, {}, {}
    for fraction in (1, 0.5, 0.25):
        program = converter.build(case.model(), update={"block_14_expand/kernel": fraction}, batch=4, check=False)
        step = program.signatures["train"]
        gradient = [n for n in step.nodes if n.origin.phase == "backward" and "block_14_expand" in n.origin.layer]
        products = [n for n in gradient if n.op.code in ("BATCH_MATMUL", "FULLY_CONNECTED", "CONV_2D")]
        work[fraction] = sum(map(flops, products))
        residual[fraction] = program.costs["residual_bytes"]
        sizes[fraction] = sum(p.value.size for p in step.parameters.values())
    for fraction in (0.5, 0.25):
        assert sizes[fraction] == fraction * sizes[1]
        assert work[fraction] == fraction * work[1] > 0
        # The rest of the residuals is what the layers behind keep.
        assert residual[1] - residual[fraction] == (1 - fraction) * 4 * 160 * 4, "of its input [4, 1, 1, 160]"


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in CASES if name not in QUICK)]
)
def test_tensorflow_runs_the_same_program(name: str) -> None:
    _is_run_by_tensorflow(name, "variables")


@pytest.mark.parametrize(("name", "state"), [("mlp", "stateless"), ("lenet", "split")])
def test_tensorflow_runs_the_same_program_without_variables(name: str, state: str) -> None:
    _is_run_by_tensorflow(name, state)


def _is_run_by_tensorflow(name: str, state: str) -> None:
    """Builtin operators only, and equal losses in ai-edge-litert and in TensorFlow's own interpreter."""
    case = CASES[name]
    program = converter.build(case.model(), optimizer="adamw", update=case.update("sparse"), batch=4, state=state)
    codes = schema.ModelT.InitFromObj(schema.Model.GetRootAs(program.data)).operatorCodes
    assert codes
    assert all(c.builtinCode != schema.BuiltinOperator.CUSTOM and not c.customCode for c in codes)
    losses = []
    for runtime in (
        interpreter(program.data, True),
        interpreter(program.data, True, tf.lite, tf.lite.experimental.OpResolverType),
    ):
        losses.append(train(runtime, program, case))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    assert losses[0][-1] != losses[0][0]


def train(runtime, program: converter.Program, case) -> list[float]:
    """Three steps by the signature alone, as any user of the runtime would."""
    manifest = program.manifest
    step = list(dict.fromkeys([manifest.step, manifest.updating]))
    own = program.signatures[step[-1]].parameters.items() if manifest.state != "variables" else ()
    state = {p.name: p.value.reshape(v.shape) for v, p in own if p.kind != "accumulator"}
    losses = []
    for i in range(3):
        x, y = case.batch(4, i)
        known = {"x": x, "y": y, "weight": np.ones(4, np.float32), "learning_rate": np.array([1e-3], np.float32)}
        for name in step:
            taken = [spec.name for spec in manifest.signatures[name].inputs]
            known |= runtime.get_signature_runner(name)(**{n: (state | known)[n] for n in taken})
        losses.append(float(known["loss"][0]))
        state = {name: known[name] for name in state}
    return losses
