"""Heads of models by their last products: of several outputs, side by side, shared, tied, in loops, computed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import torch
from ai_edge_litert.interpreter import Interpreter
from torch import nn

import converter
import jax_frontend
from converter import LoRA
from converter.driver.models import import_model
from converter.frontends.torch import Model as TorchModel
from converter.passes import absorb_layout
from converter.passes.canonical import canonicalize
from converter.passes.idioms import with_idioms
from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from converter.tools.search.space import read_space
from converter.training.schemes import update_scheme
from tests.steps import assert_alike
from tests.tflite_frontend.shipped import shipped

BATCH, FEATURES, STEPS = 4, 6, 2
RNG = np.random.default_rng(0)
X = RNG.standard_normal((BATCH, FEATURES)).astype(np.float32)
Params = Mapping[str, Any]


def drawn(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        name.replace("__", "/"): rng.standard_normal(shape).astype(np.float32) / 2 for name, shape in shapes.items()
    }


def two(p: Params, x: Any) -> Any:
    h = jnp.tanh(x @ p["body/w"] + p["body/b"])
    return {"kind": h @ p["kind/w"] + p["kind/b"], "size": h @ p["size/w"] + p["size/b"]}


TWO = drawn(body__w=(6, 8), body__b=(8,), kind__w=(8, 3), kind__b=(3,), size__w=(8, 2), size__b=(2,))


def early(p: Params, x: Any) -> Any:
    """An output after the first layer, and one after the second."""
    h = jnp.tanh(x @ p["first/w"])
    return {"a": h @ p["aux/w"], "b": jnp.tanh(h @ p["second/w"]) @ p["top/w"]}


def chained(p: Params, x: Any) -> Any:
    """What one head gives, the other reads."""
    a = jnp.tanh(x @ p["body/w"]) @ p["one/w"]
    return {"a": a, "b": jnp.tanh(a) @ p["two/w"]}


def shared(p: Params, x: Any) -> Any:
    """One matrix for both outputs, with a bias of each."""
    h = jnp.tanh(x @ p["body/w"])
    return {"a": h @ p["w"] + p["b1"], "b": jnp.sin(h) @ p["w"] + p["b2"]}


def beside(p: Params, x: Any) -> Any:
    """One output, of two layers side by side: wide and deep."""
    return x @ p["wide/w"] + jnp.tanh(x @ p["deep/w"]) @ p["top/w"]


def gated(p: Params, x: Any) -> Any:
    """One output, of two layers whose results are multiplied."""
    h = jnp.tanh(x @ p["deep/w"])
    return jax.nn.sigmoid(h @ p["gate/w"]) * (h @ p["top/w"])


def residual(p: Params, x: Any) -> Any:
    h = x @ p["first/w"]
    return h + jnp.tanh(h) @ p["last/w"]


def twice(p: Params, x: Any) -> Any:
    """A matrix that is used in the middle as well, with a bias there."""
    h = jnp.tanh(jnp.tanh(x @ p["w"] + p["b1"]) @ p["v"] + p["b2"])
    return h @ p["w"] + p["b3"]


def with_value(p: Params, x: Any) -> Any:
    """Words by the matrix that looks them up, and a number beside them."""
    h = p["table/w"][x] * p["norm/scale"]
    h = jnp.tanh(h @ p["body/w"]) * p["last/scale"]
    return {"words": h @ p["table/w"].T, "worth": h.mean(1) @ p["worth/w"]}


def with_words(p: Params, x: Any) -> Any:
    """As many words as are looked up, by a matrix of its own, and a number after it."""
    h = jnp.tanh(p["table/w"][x] @ p["body/w"])
    return {"words": h @ p["words/w"], "worth": h.mean(1) @ p["worth/w"]}


def in_a_loop(p: Params, x: Any) -> Any:
    """A recurrent layer gives one output, a dense one behind the first step the other."""
    steps = (x @ p["cell/w"]).reshape(-1, 4, 2).swapaxes(0, 1)
    last, each = jax.lax.scan(lambda h, s: ((h := jnp.tanh(s + h @ p["cell/u"])), h), jnp.zeros((x.shape[0], 2)), steps)
    return {"last": last, "sum": each.sum(0) @ p["sum/w"]}


def normed(p: Params, x: Any) -> Any:
    """Weights whose columns have the norm of a parameter."""
    v = p["head/v"]
    return jnp.tanh(x @ p["body/w"]) @ (p["head/g"] * v / jnp.sqrt((v**2).sum(0))) + p["head/b"]


def of_one(outputs: Any, y: Any) -> Any:
    return ((outputs["size"] - y) ** 2).mean(-1)


KIND, SIZE, MSE = {"kind": "mse"}, {"size": "mse"}, {"a": "mse", "b": "mse"}
BOTH = {**KIND, **SIZE}
HEADS = {"kind/w", "kind/b", "size/w", "size/b"}
EARLY = drawn(first__w=(6, 8), aux__w=(8, 2), second__w=(8, 8), top__w=(8, 3))
SHARED = drawn(body__w=(6, 8), w=(8, 3), b1=(3,), b2=(3,))


def nearest(p: Params, x: Any) -> Any:
    """Distances to learned centres, squared."""
    h = jnp.tanh(x @ p["body/w"]) @ p["inner/w"] + p["inner/b"]
    return -((h[:, None] - p["near/centres"]) ** 2).sum(-1)


def nearest_scaled(p: Params, x: Any) -> Any:
    """Distances to learned centres, times a learned temperature."""
    h = jnp.tanh(x @ p["body/w"]) @ p["inner/w"] + p["inner/b"]
    return p["near/scale"] * jnp.sqrt(((p["near/centres"][None] - h[:, None]) ** 2).sum(-1) + 1)


def ordinal(p: Params, x: Any) -> Any:
    """One number, beside which thresholds lie."""
    return jnp.tanh(x @ p["body/w"]) @ p["w"] + p["thresholds"]


CENTRES = drawn(body__w=(6, 8), inner__w=(8, 5), inner__b=(5,), near__centres=(3, 5), near__scale=(3,))
UNSCALED = {name: array for name, array in CENTRES.items() if name != "near/scale"}
LOOP = drawn(cell__w=(6, 8), cell__u=(2, 2), sum__w=(2, 3))
NORMED = drawn(body__w=(6, 8), head__v=(8, 3), head__g=(3,), head__b=(3,))
#: The function, its parameters, the loss, the scheme and what trains.
CASES: dict[str, tuple[Callable[..., Any], dict[str, np.ndarray], Any, str, set[str]]] = {
    "two": (two, TWO, BOTH, "head", HEADS),
    "the first": (two, TWO, KIND, "head", {"kind/w", "kind/b"}),
    "the second": (two, TWO, SIZE, "head", {"size/w", "size/b"}),
    "of a function": (two, TWO, of_one, "head", {"size/w", "size/b"}),
    "last-1": (two, TWO, BOTH, "last-1", HEADS),
    "last-2": (two, TWO, BOTH, "last-2", set(TWO)),
    "sparse": (two, TWO, BOTH, "sparse", set(TWO)),
    "bias-only": (two, TWO, BOTH, "bias-only", {*HEADS, "body/b"}),
    "early": (early, EARLY, MSE, "head", {"aux/w", "top/w"}),
    "chained": (chained, drawn(body__w=(6, 8), one__w=(8, 4), two__w=(4, 3)), MSE, "head", {"one/w", "two/w"}),
    "shared": (shared, SHARED, MSE, "head", {"w", "b1", "b2"}),
    "shared, one loss": (shared, SHARED, {"a": "mse"}, "head", {"w", "b1"}),
    "beside": (beside, drawn(wide__w=(6, 3), deep__w=(6, 8), top__w=(8, 3)), "mse", "head", {"wide/w", "top/w"}),
    "gated": (gated, drawn(deep__w=(6, 8), gate__w=(8, 3), top__w=(8, 3)), "mse", "head", {"gate/w", "top/w"}),
    "residual": (residual, drawn(first__w=(6, 5), last__w=(5, 5)), "mse", "head", {"last/w"}),
    "twice": (twice, drawn(w=(6, 6), v=(6, 6), b1=(6,), b2=(6,), b3=(6,)), "mse", "head", {"w", "b3"}),
    "loop": (in_a_loop, LOOP, {"last": "mse", "sum": "mse"}, "head", set(LOOP)),
    "nearest": (nearest, UNSCALED, "mse", "head", {"near/centres"}),
    "nearest, scaled": (nearest_scaled, CENTRES, "mse", "head", {"near/centres", "near/scale"}),
    "ordinal": (ordinal, drawn(body__w=(6, 8), w=(8, 1), thresholds=(3,)), "mse", "head", {"w", "thresholds"}),
    "normed": (normed, NORMED, "mse", "head", {"head/v", "head/g", "head/b"}),
}


def model(apply: Callable[..., Any], params: Params, x: Any = None) -> jax_frontend.Model:
    return jax_frontend.Model(apply, params, [x or jax.ShapeDtypeStruct((1, FEATURES), jnp.float32)])


def targets(apply: Callable[..., Any], params: Params, loss: Any) -> Any:
    """Numbers like the outputs that have a loss."""
    rng, outputs = np.random.default_rng(2), apply(params, X)
    if loss is of_one:
        return rng.standard_normal(outputs["size"].shape).astype(np.float32)
    if not isinstance(outputs, dict):
        return rng.standard_normal(outputs.shape).astype(np.float32)
    return {name: rng.standard_normal(outputs[name].shape).astype(np.float32) for name in loss}


def total(trained: Params, frozen: Params, apply: Callable[..., Any], y: Any, loss: Any) -> Any:
    outputs = apply({**frozen, **trained}, X)
    if not isinstance(outputs, dict):
        return ((outputs - y) ** 2).mean()
    y = {"size": y} if loss is of_one else y
    return sum(((outputs[name] - array) ** 2).mean() for name, array in y.items())


@pytest.mark.quick
@pytest.mark.parametrize("name", CASES)
def test_what_trains_does_as_jax_says(name: str) -> None:
    """Each wanted parameter moves as by jax.grad, and no other one is trained."""
    apply, params, loss, update, wanted = CASES[name]
    y = targets(apply, params, loss)
    options = {"y": jax.ShapeDtypeStruct((1, 2), "float32")} if loss is of_one else {}
    built = converter.build(model(apply, params), loss=loss, update=update, batch=BATCH, check=False, **options)
    assert {p.name for p in built.manifest.parameters} == wanted
    trained, frozen = ({n: a for n, a in params.items() if (n in wanted) is held} for held in (True, False))
    gradient = (
        jax.jit(jax.value_and_grad(total), static_argnums=(2, 4)) if loss is of_one else jax.value_and_grad(total)
    )
    with TrainingSession(built.data) as session:
        for _ in range(STEPS):
            expected, gradients = gradient(trained, frozen, apply, y, loss)
            assert session.train(X, y, 0.1) == pytest.approx(float(expected), rel=1e-5)
            trained = {n: a - 0.1 * gradients[n] for n, a in trained.items()}
        assert_alike(session.parameters(), trained, rtol=1e-4, atol=1e-6)


def resolved(apply: Callable[..., Any], params: Params, x: Any, update: str) -> dict[str, Any]:
    graph = absorb_layout(canonicalize(with_idioms(jax_frontend.trace(model(apply, params, x), 2))))
    return {row.parameter: row.adapter or row.fraction for row in update_scheme(update).resolve(graph)}


def test_words_beside_another_output() -> None:
    """A matrix tied to the embedding trains where the head is asked for; other schemes leave logits of words alone."""
    x = jax.ShapeDtypeStruct((1, 5), jnp.int32)
    tied = drawn(table__w=(11, 8), norm__scale=(8,), body__w=(8, 8), last__scale=(8,), worth__w=(8, 1))
    found = resolved(with_value, tied, x, "head")
    assert {name for name, granted in found.items() if granted} == {"table/w", "last/scale", "worth/w"}
    own = drawn(table__w=(11, 8), body__w=(8, 8), words__w=(8, 11), worth__w=(8, 1))
    for update, adapted in (("head", 0.0), ("lora-2", LoRA(2, 4))):
        found = resolved(with_words, own, x, update)
        assert found == {"table/w": 0, "body/w": adapted, "words/w": float(update == "head"), "worth/w": 1}


def test_adapters_leave_heads_whole_or_alone() -> None:
    x = jax.ShapeDtypeStruct((1, FEATURES), jnp.float32)
    assert resolved(two, TWO, x, "lora-1") == {"body/w": LoRA(1, 2), "body/b": 0, **dict.fromkeys(HEADS, 1)}
    assert resolved(two, TWO, x, "lora-2:all-linear") == {"body/w": LoRA(2, 4), **dict.fromkeys({*HEADS, "body/b"}, 0)}


@pytest.mark.quick
def test_features_of_several_heads_are_those_of_the_steps() -> None:
    y, params = targets(two, TWO, BOTH), []
    for signatures in (("train", "evaluate", "infer", "features"), ("train", "evaluate", "infer")):
        built = converter.build(
            model(two, TWO), loss=BOTH, update="head", batch=BATCH, check=False, signatures=signatures
        )
        with TrainingSession(built.data) as session:
            session.fit(X, y, epochs=3, learning_rate=0.1, seed=0, progress=False)
            params.append(session.parameters())
    assert_alike(*params, rtol=1e-5)


def test_what_is_of_one_last_layer_is_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"update": "head", "head": "class_means"}, "head='class_means': the model has 2 outputs, kind, size"),
        ({"update": "head", "classes": "3+2"}, r"classes='3\+2': the model has 2 outputs, kind, size"),
        ({"update": "skip-lora-2"}, "the model has kind, size"),
    ]
    for asked, said in refused:
        with pytest.raises(UsageError, match=said):
            converter.build(model(two, TWO), loss=BOTH, batch=BATCH, check=False, **asked)
    apply, params, loss, _, _ = CASES["gated"]
    with pytest.raises(UsageError, match="or a sum of such, but in gate/w, top/w"):
        converter.build(model(apply, params), loss=loss, update="skip-lora-2", batch=BATCH, check=False)
    apply, params, loss, _, _ = CASES["beside"]
    added = converter.build(model(apply, params), loss=loss, update="skip-lora-2", batch=BATCH, check=False)
    ways = {
        name
        for name in ("wide/w", "deep/w", "top/w")
        if f"{name}/skip_b" in {p.name for p in added.manifest.parameters}
    }
    assert ways == {"wide/w", "deep/w", "top/w"}


def test_costs_and_the_space_of_a_search_are_of_all_heads() -> None:
    rows = converter.compare_schemes(model(two, TWO), ("head", "full"), loss=BOTH, batch=BATCH)
    sizes = {name: array.size for name, array in TWO.items()}
    assert rows[0]["trained_parameters"] == sum(sizes[name] for name in HEADS)
    assert rows[1]["trained_parameters"] == sum(sizes.values())
    source = import_model(model(two, TWO), BATCH)
    space = read_space(source)
    assert (set(space.head), [layer.parameter for layer in space.layers]) == (HEADS, ["body/w"])
    of_one_output = read_space(source, scored=["size"])
    assert set(of_one_output.head) == {"size/w", "size/b"}


# -- other front ends --------------------------------------------------------------------------------------------------


def test_keras_trains_the_same_heads() -> None:
    """An output without a loss, and one that is not of its own layer, have no head."""
    keras.utils.set_random_seed(1)
    x = keras.Input((FEATURES,))
    h = keras.layers.Dense(8, "tanh", name="body")(x)
    kind = keras.layers.Dense(3, "softmax", name="kind")(h)
    size = keras.layers.Dense(2, name="size")(keras.layers.Dense(5, "relu", name="inner")(h))
    net = keras.Model(x, {"kind": kind, "size": size, "features": h})
    losses = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
    built = converter.build(net, loss=losses, update="head", batch=BATCH, check=False)
    assert {p.name for p in built.manifest.parameters} == {"kind/kernel", "kind/bias", "size/kernel", "size/bias"}
    for layer in ("body", "inner"):
        net.get_layer(layer).trainable = False
    net.compile(keras.optimizers.SGD(0.1), losses)
    y = {"kind": np.arange(BATCH, dtype=np.int32) % 3, "size": X[:, :2]}
    with TrainingSession(built.data) as session:
        for _ in range(STEPS):
            expected = float(np.ravel(net.train_on_batch(X, y))[0])
            assert session.train(X, y, 0.1) == pytest.approx(expected, rel=1e-5)
        assert_alike(session.parameters(), {v.path: v.numpy() for v in net.trainable_variables}, rtol=1e-4, atol=1e-6)


class Heads(nn.Module):
    """A tuple of two outputs; PyTorch's own loss of both."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.a, self.b = nn.Linear(FEATURES, 8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.body(x))
        return self.a(h), self.b(h)


@pytest.mark.parametrize("outputs", [(0, 1), (0,)], ids=["both", "one"])
def test_torch_trains_the_same_heads(outputs: tuple[int, ...]) -> None:
    def rows(given: Any, y: Any) -> Any:
        return sum(((given[i] - y[:, : given[i].shape[1]]) ** 2).mean(1) for i in outputs)

    torch.manual_seed(0)
    module = Heads()
    y = np.random.default_rng(3).standard_normal((BATCH, 3)).astype(np.float32)
    described = jax.ShapeDtypeStruct((1, 3), "float32")
    built = converter.build(
        module, inputs=(torch.zeros(1, FEATURES),), loss=rows, y=described, update="head", batch=BATCH, check=False
    )
    heads = [getattr(module, "ab"[i]) for i in outputs]
    optimizer = torch.optim.SGD([p for head in heads for p in head.parameters()], 0.1)
    with TrainingSession(built.data) as session:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = rows(module(torch.from_numpy(X)), torch.from_numpy(y)).mean()
            loss.backward()
            optimizer.step()
            assert session.train(X, y, 0.1) == pytest.approx(loss.item(), rel=1e-5)
        found = session.parameters()
    assert found.keys() == {f"{'ab'[i]}.{part}" for i in outputs for part in ("weight", "bias")}
    assert_alike(
        found, {n: p.detach().numpy() for n, p in module.named_parameters() if n in found}, rtol=1e-4, atol=1e-6
    )


def test_a_parametrized_layer_of_torch_keeps_its_bias() -> None:
    head = nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))
    module = nn.Sequential(OrderedDict(body=nn.Linear(FEATURES, 8), bend=nn.Tanh(), head=head))
    source = import_model(TorchModel(module, (torch.zeros(1, FEATURES),)), BATCH)
    found = {row.parameter for row in update_scheme("head").resolve(canonicalize(source.graph)) if row.fraction}
    assert found == {"head.bias", *(f"head.parametrizations.weight.original{i}" for i in (0, 1))}


def test_a_tflite_file_trains_the_heads_of_both_outputs(tmp_path: Path) -> None:
    """The gradient is that of a softmax and of a sigmoid by hand, from what the stock interpreter gives before them."""
    (tmp_path / "shipped.tflite").write_bytes(shipped())
    losses = {"presence": "binary_crossentropy", "kind": "sparse_categorical_crossentropy"}
    built = converter.build(tmp_path / "shipped.tflite", loss=losses, update="head", batch=BATCH, optimizer="sgd")
    x = np.random.default_rng(1).random((BATCH, 8, 8, 2), np.float32)
    y = {"presence": np.array([[1], [0], [0], [1]], np.float32), "kind": np.array([1, 6, 2, 0], np.int32)}
    runner = Interpreter(model_content=shipped()).get_signature_runner("serving")
    before = [runner(image=row[None]) for row in x]
    presence, kind = (np.concatenate([each[name] for each in before]) for name in losses)
    wanted = {"presence": (presence - y["presence"]).mean(0), "kind": (kind - np.eye(7)[y["kind"]]).mean(0)}
    with TrainingSession(built.data) as session:
        old = session.parameters()
        assert {name.split("/")[-2] for name in old} == set(losses)
        session.train(x, y, 0.1)
        new = session.parameters()
    for name, gradient in wanted.items():
        (bias,) = (key for key in old if key.endswith(f"{name}/bias"))
        np.testing.assert_allclose(old[bias] - new[bias], 0.1 * gradient, rtol=1e-4, atol=1e-6)
