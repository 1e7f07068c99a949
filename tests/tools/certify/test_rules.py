"""Each rule taken out of the table of an engine: the certificate fails, and names the layer that needed it.

.venv/bin/python -m pytest -m "slow or not slow" tests/tools/certify/test_rules.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.backend import legalize as avoid
from converter.backend import targets
from converter.backend.targets import Target
from converter.runtime.engines import engine
from converter.support.errors import UnsupportedError
from tests.backend.legalize.avoid_cases import MICRO


def weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The same for the same shapes, whatever was drawn before."""
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, np.float32) / 3 for name, shape in shapes.items()}


@dataclass(frozen=True)
class Case:
    """A model that needs a rule.

    Attributes:
        apply: of its parameters and rows.
        shapes: of its parameters.
        shape: of a row.
        ids: whether rows are whole numbers.
        target: whose forms it takes; the first one's engine runs it.
        frozen: in what form the parameter `f` is, which does not train then.
    """

    apply: Callable[[dict[str, Any], Any], Any]
    shapes: dict[str, tuple[int, ...]]
    shape: tuple[int, ...]
    ids: bool = False
    target: str = "gpu"
    frozen: str = "float32"

    @property
    def on(self) -> str:
        return self.target.partition(",")[0]

    def model(self) -> jax_frontend.Model:
        def apply(params: Any, x: Any) -> Any:
            with jax.named_scope("culprit"):
                return self.apply(params, x)

        row = jax.ShapeDtypeStruct((1, *self.shape), np.int32 if self.ids else np.float32)
        return jax_frontend.Model(apply, weights(self.shapes), [row])


FROZEN, SIGNS = weights({"frozen": (5, 4), "signs": (6, 4)}).values()
MASK, AHEAD = (SIGNS > 0).astype(np.float32), np.tri(12, dtype=bool).T
ROWS, EIGHTS = np.array([0, 1, 0, 1, 1], np.int32), np.array([8, 7, 8, 7, 8], np.int32)
DENSE, TABLE, SCALE, STORED = {"w": (6, 4)}, {"e": (9, 4)}, {"w": (4,)}, {"f": (64, 64), "w": (64, 4)}


def mean(x: Any) -> Any:
    """Of all but rows and channels."""
    return jnp.mean(x, range(1, x.ndim - 1))


def conv(x: Any, w: Any, stride: int = 1, groups: int = 1, bias: Any = 0.0) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    made = jax.lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=numbers, feature_group_count=groups
    )
    return mean(jnp.tanh(made + bias))


def pooled(x: Any, window: int, stride: int, start: float, op: Any) -> Any:
    return jax.lax.reduce_window(x, start, op, (1, window, window, 1), (1, stride, stride, 1), "VALID")


def attention(x: Any, w: Any, masked: float) -> Any:
    scores = jnp.where(AHEAD, (x @ w) @ jnp.swapaxes(x, -1, -2), masked)
    return mean(jax.nn.softmax(scores) @ x)


def rank_5(p: Any, x: Any) -> Any:
    wide = jnp.transpose((x[..., None] * p["w"]).reshape(-1, 2, 3, 2, 2), (0, 4, 2, 3, 1))
    return wide.sum(3).reshape(x.shape[0], -1) @ p["head"]


def scattered(p: Any, x: Any) -> Any:
    pairs = (x @ p["w"]).reshape(-1, 2, 2)
    return (jnp.zeros((x.shape[0], 1000, 2, 2)).at[:, 3].set(pairs).sum(1) + pairs).reshape(-1, 4)


def padded(p: Any, x: Any) -> Any:
    negative = jnp.pad(-1 - x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return mean(jnp.tanh(pooled(negative, 3, 1, -jnp.inf, jax.lax.max) * p["w"]))


def embedded(p: Any, ids: Any) -> Any:
    return mean(jnp.take(p["e"], ids, axis=0))


def with_first_token(p: Any, x: Any) -> Any:
    """Repeated more often than a factor of ones may be large, which would stand in its place."""
    return mean(jnp.concatenate([jnp.broadcast_to(p["c"], (x.shape[0], 2100, 4)), x], 1))


def parts(x: Any) -> Any:
    """Slices that do not touch, whose gradients are padded and added up."""
    return x[:, :4] * jnp.exp(-x[:, 6:10]) + 0.5 * x[:, 12:]


def logarithm(x: Any) -> Any:
    """Of zero too."""
    return jnp.maximum(jnp.log(x + 1e-8), -10)


def alone(p: Any, x: Any) -> Any:
    """A row of one number has a share of 1, and 64 times that is still all of it."""
    scores = x @ p["w"]
    return (jax.nn.softmax(jnp.where(np.arange(4) < 1, scores, -1e9)) ** 64)[..., :1] * scores


def looked_up(p: Any, ids: Any) -> Any:
    """Rows of a table that does not train."""
    return mean(jnp.tanh(jnp.take(p["f"], ids, axis=0) @ p["w"]))


CASES = {
    "rank-above-4": Case(rank_5, {"w": (4,), "head": (12, 3)}, (6,)),
    "constant-rows": Case(lambda p, x: x @ (p["w"] * MASK), DENSE, (6,)),
    "constant-int32-first": Case(lambda p, x: embedded(p, EIGHTS - x), TABLE, (5,), ids=True),
    "constant-int32-rank": Case(lambda p, x: embedded(p, x + ROWS), TABLE, (5,), ids=True),
    "constant-int32-large": Case(lambda p, x: embedded(p, x * 40503001 % 9), TABLE, (5,), ids=True),
    "select-value-shape": Case(lambda p, x: jnp.where(x > 0.5, x, p["a"]), {"a": (4,)}, (4,)),
    "constant-infinite": Case(lambda p, x: attention(x, p["w"], -jnp.inf), {"w": (4, 4)}, (12, 4)),
    "identical-operands": Case(lambda p, x: jnp.nan_to_num(x @ p["w"]), DENSE, (6,)),
    "matmul-wide": Case(lambda p, x: x @ p["w"], {"w": (6, 33000)}, (6,)),
    # Of whole numbers: of others the CPU's own sine depends on the last bits, and so much is allowed.
    "sine": Case(lambda p, x: jnp.sin(jnp.floor(9 * x) + 1000)[:, :4] * (x @ p["w"]), DENSE, (6,)),
    "cumsum-reverse": Case(lambda p, x: jax.lax.cumsum(x @ p["w"], 1, reverse=True), DENSE, (6,)),
    "zeros": Case(scattered, DENSE, (6,)),
    "argmax-last-axis": Case(lambda p, x: jnp.take(p["e"], jnp.argmax(-1 - x, -1), axis=0), {"e": (6, 4)}, (6,)),
    "select-condition-rank": Case(lambda p, x: attention(x, p["w"], -1e9), {"w": (4, 4)}, (2, 12, 4)),
    "matmul-constant-transposed": Case(lambda p, x: x @ (p["w"].T @ FROZEN), {"w": (5, 6)}, (6,)),
    "matmul-constant-first": Case(lambda p, x: x @ (FROZEN @ p["w"]), {"w": (4, 3)}, (5,)),
    "matmul-unequal-batch": Case(lambda p, x: mean(jnp.tanh(x @ p["w"])), {"w": (4, 4)}, (5, 4)),
    "fully-connected-runtime": Case(
        lambda p, x: jnp.tanh(x @ p["w"].T + p["b"]), {"w": (40, 50), "b": (40,)}, (50,), target="gpu,tflite-2.16"
    ),
    "runtime-bias": Case(lambda p, x: conv(x, p["w"], bias=p["b"]), {"w": (3, 3, 2, 4), "b": (4,)}, (8, 8, 2)),
    "depthwise-multiplier": Case(lambda p, x: conv(x, p["w"], groups=2), {"w": (3, 3, 1, 4)}, (8, 8, 2)),
    "transpose-conv-padding": Case(
        lambda p, x: conv(jnp.tanh(x * p["w"]), p["f"], 2), {"w": (4,), "f": (3, 3, 4, 4)}, (11, 12, 4)
    ),
    "pad-average-pool": Case(
        lambda p, x: mean(jnp.tanh(pooled(jnp.tanh(x * p["w"]), 2, 2, 0.0, jax.lax.add))), SCALE, (8, 8, 4)
    ),
    "pad-merged": Case(padded, SCALE, (8, 8, 4)),
    "pad-below-rank-4": Case(lambda p, x: mean(jnp.pad(x * p["w"], ((0, 0), (1, 2), (1, 0)))), SCALE, (5, 4)),
    "space-to-depth": Case(
        lambda p, x: conv(jnp.tanh(x * p["w"]), p["f"], 2, 4), {"w": (4,), "f": (3, 3, 1, 4)}, (8, 8, 4)
    ),
    "broadcast-to": Case(with_first_token, {"c": (1, 1, 4)}, (5, 4)),
    "gather-2d-indices": Case(embedded, TABLE, (5,), ids=True),
    "gather-constant-indices": Case(
        lambda p, x: x @ jnp.take(jnp.abs(p["w"]), ROWS, axis=0), {"w": (2, 4)}, (5,), target="web"
    ),
    "one-hot-2d-indices": Case(lambda p, x: mean(jax.nn.one_hot(x, 9) @ p["e"]), TABLE, (5,), ids=True, target="web"),
    "scatter-nd": Case(embedded, TABLE, (5,), ids=True),
    "cumsum-first-axis": Case(lambda p, x: x @ jnp.cumsum(p["w"], 0), DENSE, (6,)),
    "reverse-last-axis": Case(lambda p, x: mean(jnp.flip(jnp.tanh(x * p["w"]), 3)), {"w": (5,)}, (3, 4, 5)),
    "softmax-vector": Case(lambda p, x: x @ (p["w"] * jax.nn.softmax(p["m"])), {"w": (6, 4), "m": (4,)}, (6,)),
    "cast-of-integers": Case(lambda p, x: x @ p["f"] @ p["w"], STORED, (64,), frozen="int4"),
    "cast-of-floats": Case(lambda p, x: x @ p["f"] @ p["w"], STORED, (64,), frozen="int4-blockwise"),
    "lookup-of-one-scale": Case(looked_up, STORED, (5,), ids=True, frozen="int4"),
    "pad-last-axis": Case(lambda p, x: parts(x @ p["w"]), {"w": (6, 16)}, (6,), target="hexagon"),
    "transpose-conv-same": Case(
        lambda p, x: conv(jnp.tanh(x * p["w"]), p["f"], 2),
        {"w": (4,), "f": (2, 2, 4, 4)},
        (10, 10, 4),
        target="hexagon",
    ),
    "truth-values": Case(
        lambda p, x: jnp.where((x > 0.5) == (jnp.flip(x, 1) > 0.3), x, 1.0) @ p["w"], DENSE, (6,), target="hexagon"
    ),
    "absent": Case(lambda p, x: jnp.arctan2(x @ p["w"], 2.0), DENSE, (6,), target="hexagon"),
    "activation-of-product": Case(lambda p, x: jnp.tanh(x @ (3 * p["w"])) ** 8, DENSE, (6,), target="hexagon"),
    "logistic": Case(lambda p, x: 4 * jax.nn.sigmoid(x @ (3 * p["w"])) ** 8 - 0.5, DENSE, (6,), target="hexagon"),
    "mask-of-huge": Case(
        lambda p, x: 2**16 * jax.nn.relu(x @ (p["w"] * 2**-16)) @ FROZEN.T, DENSE, (6,), target="hexagon"
    ),
    "exp": Case(lambda p, x: jnp.exp(-jnp.square(60 * (x @ p["w"]))) + x @ p["w"], DENSE, (6,), target="hexagon"),
    "softmax": Case(alone, DENSE, (6,), target="hexagon"),
    "gelu": Case(
        lambda p, x: 2**13 * jax.nn.gelu(x @ (p["w"] * 2**-17), approximate=False), DENSE, (6,), target="hexagon"
    ),
    "constant-below-half": Case(lambda p, x: logarithm(jax.nn.relu(-x)) @ p["w"], DENSE, (6,), target="hexagon"),
}

#: On Hexagon, what other engines avoid for reasons of their own.
CASES |= {
    f"{rule} on hexagon": replace(case, target="hexagon")
    for rule, case in {
        "broadcast-to": Case(
            lambda p, x: (0.3 * jnp.tanh(0.7 * (x @ p["w"]).reshape(-1, 2, 4200))).mean(2), {"w": (6, 8400)}, (6,)
        ),
        "cumsum-reverse": CASES["cumsum-reverse"],
        "cast-of-integers": CASES["cast-of-integers"],
        "one-hot-2d-indices": Case(lambda p, x: mean(mean(jax.nn.one_hot(x, 9) @ p["e"])), TABLE, (2, 5), ids=True),
        # float16 has no last digits of such a number: here there are none to lose.
        "sine": Case(lambda p, x: jnp.sin(jnp.floor(x) + 100)[:, :4] * (x @ p["w"]), DENSE, (6,)),
    }.items()
}

#: Those that have nothing else in their place.
REFUSED = {"constant-int32-large", "absent"}
#: Nets of such a table alone end Qualcomm's compiler (exit status 6), in float32 too. `legalize/test_avoid.py` of
#: tests/backend has the operators on the engine, and tests/decoder_frontend/test_accelerators.py decoders. What
#: TensorFlow Lite Micro lacks it has not registered, which test_avoid shows as well, and nets with it train in
#: tests/runtime/engines/test_tflm.py.
ELSEWHERE = {"lookup-of-integers", *MICRO}


def without(rule: str) -> Target:
    """The engine's table without a rule, and without what it says of lacking operators, which is a rule as well."""
    table, name = targets.target(CASES[rule].target), rule.partition(" ")[0]
    return replace(table, avoids=[other for other in table.avoids if other != name], limits={})


def build(rule: str, target: Target | str) -> bytes:
    case = CASES[rule]
    update = "full" if case.frozen == "float32" else {"w": 1}
    options = {"optimizer": optax.sgd(1.0), "batch": 2, "signatures": ["train"], "check": False}
    return converter.build(case.model(), target=target, frozen=case.frozen, update=update, **options).data


def test_every_rule_has_a_model_that_needs_it() -> None:
    assert {name.partition(" ")[0] for name in CASES} | ELSEWHERE == avoid.PATTERNS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("rule", CASES)
def test_a_rule_that_is_missed_is_missed_by_layer(rule: str, tmp_path: Path) -> None:
    case, path = CASES[rule], tmp_path / "p.tflite"
    if missing := engine(case.on).missing():
        pytest.skip(f"{case.on}: {missing}")
    if rule in REFUSED:
        with pytest.raises(UnsupportedError, match=f"culprit: {case.on} cannot be trusted"):
            build(rule, case.target)
    else:
        path.write_bytes(build(rule, case.target))
        certificate = converter.certify(path, on=case.on, steps=1)
        assert certificate.ok, certificate.failures
    path.write_bytes(build(rule, without(rule)))
    certificate = converter.certify(path, on=case.on, steps=1)
    assert not certificate.ok
    assert "culprit" in {failure.layer for failure in certificate.failures}, certificate.failures
