"""`infer_<rows>`: the model for other numbers of rows, so that one row does not cost what a batch does."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
from converter.runtime import TrainingSession
from converter.runtime.session.evaluation import calls
from converter.support.errors import UsageError
from jax_frontend import Model
from tests.models.oracle import jax_model
from tests.models.zoo import CASES

ALL = ("train", "infer", "infer_1", "infer_3")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lenet", {"update": "full", "state": "stateless"}),
        ("lenet", {"update": {"conv2/w": 0.5, "fc*": 1}, "micro_batch": 2}),
        ("mlp", {"update": "lora", "state": "split"}),
        ("encoder", {"update": "channels"}),
        ("encoder", {"update": "full", "optimizer": optax.adafactor(1.0)}),  # which keeps weights as the model does
    ],
)
def test_few_rows_give_what_many_do(name: str, options: dict[str, Any]) -> None:
    model = CASES[name].model()
    x, y = CASES[name].batch(11, 0)
    program = converter.build(model, batch=8, signatures=ALL, **options)
    with TrainingSession(program.data) as session:
        np.testing.assert_allclose(session.infer(x[:1]), jax_model(model).apply(model.params, x[:1]), atol=1e-5)
        session.train(x[:8], y[:8], 0.05)
        together = session.infer(x[:8])
        for size in (1, 2, 3):
            separate = np.concatenate([session.infer(x[i : min(i + size, 8)]) for i in range(0, 8, size)])
            np.testing.assert_allclose(separate, together, atol=1e-5 * np.abs(together).max())
        assert session.infer(x).shape == (11, *together.shape[1:])


def test_a_session_takes_the_signature_that_just_holds_the_rows() -> None:
    manifest = converter.build(CASES["mlp"].model(), batch=8, signatures=ALL, check=False).manifest
    taken = {
        rows: [(name, part.stop - part.start) for name, part in calls(manifest, rows)] for rows in (1, 2, 4, 8, 17)
    }
    assert taken == {
        1: [("infer_1", 1)],
        2: [("infer_3", 2)],
        4: [("infer", 4)],
        8: [("infer", 8)],
        17: [("infer", 16), ("infer_1", 1)],
    }


def test_one_row_does_not_cost_what_a_batch_does_and_weights_are_stored_once() -> None:
    def build(*signatures: str) -> converter.Program:
        return converter.build(CASES["lenet"].model(), batch=8, signatures=("train", "infer", *signatures), check=False)

    def flops(program: converter.Program, signature: str) -> int:
        nodes = program.signatures[signature].nodes
        return sum(n.op.cost(tuple(v.type for v in n.inputs), tuple(v.type for v in n.outputs)).flops for n in nodes)

    program = build("infer_1")
    assert flops(program, "infer_1") * 7 < flops(program, "infer")
    weights = sum(p.value.nbytes for p in program.signatures["infer"].parameters.values())
    assert len(program.data) - len(build().data) < 0.1 * weights


def test_rows_that_influence_each_other_are_computed_as_many_as_they_are() -> None:
    def apply(params: Any, x: jax.Array) -> jax.Array:
        y = x @ params["w"]
        return jnp.square(y) - y.mean(0)

    rng = np.random.default_rng(0)
    params = {"w": rng.standard_normal((3, 2)).astype("f")}
    model = Model(apply, params, [jax.ShapeDtypeStruct((1, 3), "float32")])
    program = converter.build(model, batch=4, signatures=("train", "infer", "infer_2"), check=False)
    x = rng.standard_normal((8, 3)).astype("f")
    with TrainingSession(program.data) as session:
        np.testing.assert_allclose(session.infer(x[:2]), apply(params, x[:2]), atol=1e-5)
        whole = np.concatenate([apply(params, x[:4]), apply(params, x[4:])])
        np.testing.assert_allclose(session.infer(x), whole, atol=1e-5)
        with pytest.raises(UsageError, match="influence each other"):
            session.infer(x[:3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"signatures": ("train", "infer", "infer_0")}, "unknown signature 'infer_0'.*infer_1 or any"),
        ({"signatures": ("train", "infer", "infer_one")}, "unknown signature"),
        ({"signatures": ("train", "infer_1")}, "beside 'infer'"),
        ({"signatures": ("train", "infer", "infer_999999")}, "at most 65,536 rows"),
        ({"signatures": ("train", "infer", "infer_1"), "frozen": "int8"}, "does not go together with frozen='int8'"),
    ],
)
def test_what_cannot_be_asked_for(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        converter.build(CASES["mlp"].model(), **options)


def test_as_many_rows_as_infer_takes_anyway_are_no_signature_of_their_own() -> None:
    program = converter.build(CASES["mlp"].model(), batch=4, signatures=("train", "infer", "infer_4"), check=False)
    assert "infer_4" not in program.manifest.signatures
