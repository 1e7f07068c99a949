"""Channels that are redrawn between steps, against JAX and PyTorch by the definition: W takes up D, D begins anew."""

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
from converter import Channels
from converter.cli.resolve import resolve_update
from converter.program.file import read_program
from converter.program.manifest import kept_of
from converter.runtime import TrainingSession
from converter.runtime.export import trained_weights
from converter.runtime.session.redrawing import drawn
from converter.support.errors import UsageError
from converter.training.schemes import update_scheme
from tests.training.schemes.by_hand import ADAM
from tests.training.schemes.test_channels import BATCH, CASES, ByJax, built_with, data, rows_of
from tests.training.schemes.test_lora import infer, kinds

STEPS, BETWEEN = 20, 5
#: What the change of a weight is called, behind its name.
D = "/D"
MOMENTUM = optax.sgd(1.0, momentum=0.9)


def redrawn_rules(name: str, **others: Any) -> dict[str, Any]:
    """The rules of a case, with channels that are redrawn."""
    rules = CASES[name].rules.items()
    return {k: Channels(g.ratio, redrawn=True) if isinstance(g, Channels) else g for k, g in rules} | others


class ByDefinition:
    """y = x W + x[channels] D in JAX and optax, where what trains is D and whole weights."""

    def __init__(self, name: str, optimizer: optax.GradientTransformation, whole: set[str]) -> None:
        self.name, self.optimizer, self.whole, self.oracle = name, optimizer, whole, ByJax(name)
        self.weights: dict[str, Any] = dict(self.oracle.weights)
        self.trained = {k: self.weights[k] for k in whole}
        self.channels: dict[str, np.ndarray] = {}
        self.slots: Any = None
        self.step = jax.jit(self._step)

    def begin(self, channels: dict[str, np.ndarray]) -> None:
        """Draws other channels: what was added stays in the weights, and slots of what is added begin anew."""
        if self.channels:
            self.weights = {k: np.asarray(v) for k, v in self.whole_weights().items()}
        before, self.channels = self.slots, channels
        self.trained = {k: v for k, v in self.trained.items() if k in self.whole}
        for key, indices in channels.items():
            *lead, _, outputs = CASES[self.name].products[key]
            self.trained[key + D] = np.zeros((*lead, len(indices), outputs), np.float32)
        self.slots = self.optimizer.init(self.trained)
        if before is not None:
            self.slots = jax.tree_util.tree_map_with_path(_anew, self.slots, before)

    def whole_weights(self) -> dict[str, Any]:
        """W + D at the channels, and the weights that train whole."""
        return self._sums(self.trained, self.weights, self.channels)

    def train(self, number: int) -> float:
        """Take a step."""
        state = self.trained, self.weights, self.channels, self.slots
        value, self.trained, self.slots = self.step(*state, *data(self.name, number))
        return float(value)

    def best(self, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        """As many channels as train that have the most Fisher information."""
        self.oracle.weights = {k: np.asarray(v) for k, v in self.whole_weights().items()}
        found = self.oracle.fisher(self.channels, x, y)
        return {k: np.sort(np.argsort(-found[k])[: len(v)]) for k, v in self.channels.items()}

    def _sums(self, trained: Any, weights: Any, channels: Any) -> dict[str, Any]:
        found = weights | {k: trained[k] for k in self.whole}
        for key, indices in channels.items():
            rows = jnp.zeros(CASES[self.name].products[key]).at[..., indices, :].set(trained[key + D])
            found[key] = weights[key] + (rows.T if key.startswith("left") else rows.reshape(weights[key].shape))
        return found

    def _step(self, trained: Any, weights: Any, channels: Any, slots: Any, x: Any, y: Any) -> Any:
        def loss(trained: Any) -> Any:
            return self.oracle.loss(self._sums(trained, weights, channels), x, y)

        value, gradients = jax.value_and_grad(loss)(trained)
        updates, slots = self.optimizer.update(gradients, slots, trained)
        return value, {k: v + CASES[self.name].rate * updates[k] for k, v in trained.items()}, slots


def _anew(path: Any, new: Any, old: Any) -> Any:
    """A slot after other channels were drawn."""
    return new if any(str(getattr(key, "key", "")).endswith(D) for key in path) else old


@pytest.mark.parametrize(
    ("name", "state", "optimizer"),
    [
        pytest.param("convolutional", "variables", MOMENTUM, marks=pytest.mark.quick),
        ("attention", "variables", ADAM),
        ("mixer", "stateless", ADAM),
        ("scaled", "split", MOMENTUM),
    ],
)
def test_twenty_steps_with_redraws_among_them(
    name: str, state: str, optimizer: optax.GradientTransformation, tmp_path: Path
) -> None:
    built = built_with(name, state=state, optimizer=optimizer, update=redrawn_rules(name))
    x, _ = data(name, 99)
    with TrainingSession(built.data) as session:
        channels = session.channels()
        whole = {p.name for p in built.manifest.parameters if not p.name.endswith("/change")} - channels.keys()
        oracle, found, wanted = ByDefinition(name, optimizer, whole), [], []
        oracle.begin(channels)
        for i in range(STEPS):
            if i and i % BETWEEN == 0:
                before, rows = session.infer(x), data(name, 77, 7)
                if i == 2 * BETWEEN:
                    best = oracle.best(*rows)
                    channels = session.redraw_channels(*rows)
                    for key, indices in channels.items():
                        np.testing.assert_array_equal(indices, best[key])
                else:
                    channels = session.redraw_channels(seed=i)
                oracle.begin(channels)
                np.testing.assert_allclose(session.infer(x), before, atol=1e-5 * np.abs(before).max())
            wanted.append(oracle.train(i))
            found.append(session.train(*data(name, i), CASES[name].rate))
        after, tensors = session.infer(x), session.state()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    merged, sums = trained_weights(read_program(built.data), tensors), oracle.whole_weights()
    assert merged.keys() == whole | channels.keys()
    for key, array in merged.items():
        assert np.linalg.norm(array - sums[key]) <= 1e-5 * np.linalg.norm(array), key
        assert np.abs(array - ByJax(name).weights[key]).max() > 1e-3, f"{key} has not trained"
    plain = built.export_inference(tmp_path / "plain.tflite", tensors)
    np.testing.assert_allclose(infer(plain, x), after, atol=1e-5)
    assert not {"VAR_HANDLE", "READ_VARIABLE", "GATHER"} & kinds(plain).keys()


def small(**options: Any) -> converter.Program:
    update = {"twice": 0, "left": Channels(0.5, redrawn=True), "heads": Channels(0.4, redrawn=True), "head": 1}
    return built_with("mixer", **{"update": update, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": 2},
        {"micro_batch": 1, "state": "stateless"},
        {"micro_batch": 1, "state": "split"},
        {"signatures": ("train", "infer", "fisher", "features"), "update": {"head": Channels(0.5, redrawn=True)}},
        {"optimizer": optax.adafactor(1.0)},
        {"optimizer": optax.adagrad(1.0)},
    ],
    ids=["micro-batches", "stateless micro-batches", "split micro-batches", "features", "rows and columns", "adagrad"],
)
def test_other_kinds_of_programs_go_on_from_the_same_model(options: dict[str, Any], tmp_path: Path) -> None:
    built, (x, y) = small(**options), data("mixer", 5, 7)
    with TrainingSession(built.data) as session:
        session.fit(x, y, epochs=3, learning_rate=0.02)
        before, state = session.infer(x), session.state()
        weights = session.state_dict()
        channels = session.redraw_channels(seed=2)
        np.testing.assert_allclose(session.infer(x), before, atol=1e-5)
        for name, array in session.state_dict().items():
            np.testing.assert_allclose(array, weights[name], atol=1e-6)
        after = session.state()
        kept = {t.tensor for name in channels for t in kept_of(f"{name}/change", built.manifest.state_tensors)}
        assert kept >= {f"{name}/change" for name in channels}
        program, moved = read_program(built.data), set[str]()
        for tensor in program.manifest.state_tensors:
            name = tensor.tensor
            if name in kept:
                np.testing.assert_array_equal(after[name], program.initial(tensor), err_msg=name)
                moved |= {name} if (after[name] != state[name]).any() else set()
            elif name.removesuffix("/channels") not in channels:
                np.testing.assert_array_equal(after[name], state[name], err_msg=name)
        assert len(moved) >= len(channels) * (1 + ("optimizer" in options)), "the test would pass without a change"
        session.fit(x, y, epochs=3, learning_rate=0.02)
        plain, rows = built.export_inference(tmp_path / "plain.tflite", session.state()), built.manifest.micro_batch
        np.testing.assert_allclose(infer(plain, x[:rows]), session.infer(x)[:rows], atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"frozen": "int8", "calibration": True},
        {"keep_base": 0.5, "loss": "sparse_categorical_crossentropy"},
        {"row_clipping": 1.0},
        {"target": "gpu", "state": "stateless", "signatures": ("train", "infer")},
    ],
    ids=["frozen int8", "keep_base", "row_clipping", "gpu"],
)
def test_beside_other_options_too(options: dict[str, Any], tmp_path: Path) -> None:
    x, y = data("convolutional", 3, 16)
    options = options | ({"calibration": x} if "calibration" in options else {})
    half = Channels(0.5, redrawn=True)
    update = {"pointwise/kernel": half, "rows/kernel": half, "head/*": 1}
    built = built_with("convolutional", update=update, **options)
    with TrainingSession(built.data) as session:
        built_as = session.infer(x)
        session.fit(x, y, epochs=3, learning_rate=0.05, progress=False)
        before = session.infer(x)
        assert np.abs(before - built_as).max() > 0.01
        session.redraw_channels(seed=1)
        np.testing.assert_allclose(session.infer(x), before, atol=1e-5)
        session.fit(x, y, epochs=3, learning_rate=0.05, progress=False, redraw=True, seed=1)
        plain = built.export_inference(tmp_path / "plain.tflite", session.state())
        np.testing.assert_allclose(infer(plain, x[:BATCH]), session.infer(x)[:BATCH], atol=1e-5)


def test_an_app_s_own_file_is_exported_with_what_was_added(tmp_path: Path) -> None:
    x, y = data("convolutional", 3, 16)
    built_with("convolutional").export_inference(tmp_path / "app.tflite")
    options = {"batch": BATCH, "loss": "sparse_categorical_crossentropy", "optimizer": "adam", "check": False}
    built = converter.build(tmp_path / "app.tflite", update="channels-50-redrawn", **options)
    assert built.manifest.redrawn
    with TrainingSession(built.data) as session:
        session.fit(x, y, epochs=3, learning_rate=0.01, progress=False, redraw=True, seed=1)
        assert np.abs(session.state()[f"{next(iter(built.manifest.redrawn))}/change"]).max() > 1e-3
        plain = built.export_inference(tmp_path / "plain.tflite", session.state())
        np.testing.assert_allclose(infer(plain, x[:BATCH]), session.infer(x)[:BATCH], atol=1e-5)


@pytest.mark.quick
def test_a_draw_is_of_its_seed_and_each_channel_comes_as_often() -> None:
    manifest = small().manifest
    draws = [drawn(manifest, seed, 0) for seed in range(2000)]
    for choice in manifest.redrawn.values():
        many, found = manifest.trained_channels(choice), [one[choice.indices] for one in draws]
        assert all(len(set(one)) == many and (np.diff(one) > 0).all() for one in found)
        counts, share = np.bincount(np.concatenate(found), minlength=choice.channels), many / choice.channels
        spread = np.sqrt(len(found) * share * (1 - share))
        assert (np.abs(counts - len(found) * share) < 4 * spread).all(), counts
        np.testing.assert_array_equal(drawn(manifest, 7, 3)[choice.indices], drawn(manifest, 7, 3)[choice.indices])
    epochs = {str(drawn(manifest, 7, epoch)) for epoch in range(5)}
    assert len(epochs) > 1


def test_a_saved_state_has_the_weights_and_goes_on_elsewhere(tmp_path: Path) -> None:
    x, y = data("mixer", 1, 7)
    with TrainingSession(small(optimizer=ADAM).data) as session:
        session.fit(x, y, epochs=2, learning_rate=0.02, seed=1)
        session.redraw_channels(seed=1)
        session.fit(x, y, epochs=2, learning_rate=0.02, seed=2)
        session.save(tmp_path / "mine.state")
        wanted = session.infer(x)
        session.reset()
        assert np.abs(session.infer(x) - wanted).max() > 0.01
    with TrainingSession(small(optimizer=ADAM, state="stateless", micro_batch=2).data) as session:
        session.restore(tmp_path / "mine.state")
        np.testing.assert_allclose(session.infer(x), wanted, atol=1e-5)
    fixed = {"twice": 0, "left": Channels(0.5), "heads": Channels(0.4), "head": 1}
    with TrainingSession(small(optimizer=ADAM, update=fixed).data) as session:
        with pytest.raises(UsageError, match="left trains there and is frozen here"):
            session.restore(tmp_path / "mine.state")
        taken = session.restore(tmp_path / "mine.state", adopt="matching")
        assert "head" in taken.adopted
        assert {"left/change", "left/channels", "heads/change", "heads/channels"} <= set(taken.left)


def test_what_cannot_be_redrawn_is_refused() -> None:
    x, y = data("mixer", 1, 7)
    with (
        TrainingSession(built_with("mixer").data) as session,
        pytest.raises(UsageError, match="build it with update='channels-10-redrawn'"),
    ):
        session.redraw_channels(seed=1)
    with TrainingSession(small(signatures=("train", "infer")).data) as session:
        for given in ({}, {"x": x, "y": y, "seed": 1}):
            with pytest.raises(UsageError, match="takes rows to weigh channels by, or a seed="):
                session.redraw_channels(**given)
        for seed in (-1, 1.5, True):
            with pytest.raises(UsageError, match="seed must be a whole number from 0 on"):
                session.redraw_channels(seed=seed)
        with pytest.raises(UsageError, match="no signature 'fisher'"):
            session.redraw_channels(x, y)
        session.train(x[:4], y[:4], 0.02)
        session.redraw_channels(seed=1)
    with TrainingSession(small().data) as session:
        session.train(x[:4], y[:4], 0.02)
        with pytest.raises(UsageError, match="redraw_channels goes on with others"):
            session.choose_channels(x, y)
    with pytest.raises(UsageError, match="redrawn is True or False"):
        Channels(0.5, redrawn="yes")  # type: ignore[arg-type]


def test_the_state_holds_the_weight_and_the_file_holds_it_once() -> None:
    fixed = {"twice": 0, "left": Channels(0.5), "heads": Channels(0.4), "head": 1}
    one, other = small().costs, built_with("mixer", update=fixed).costs
    assert one["trained_parameters"] == other["trained_parameters"]
    assert one["state_bytes"] - other["state_bytes"] == 4 * (5 * 6 + 2 * 5 * 4)
    wide = jax_frontend.Model(
        lambda p, x: x @ p["w"] @ p["head"],
        {
            "w": np.random.default_rng(0).normal(size=(64, 512)).astype("f"),
            "head": np.ones((512, 2), "f"),
        },
        [jax.ShapeDtypeStruct((1, 64), "float32")],
    )
    built = converter.build(wide, update={"w": Channels(0.1, redrawn=True)}, batch=4, check=False)
    assert 64 * 512 * 4 < len(built.data) < 1.5 * 64 * 512 * 4


@pytest.mark.parametrize("redrawn", [True, False])
def test_what_was_added_goes_into_other_weights_too(redrawn: bool) -> None:
    """`state_dict(base=)` has the weights of the base, W + D where W is the state's own."""
    update = {"twice": 0, "left": Channels(0.5, redrawn), "heads": Channels(0.4, redrawn), "head": 1}
    base = {k: v + np.float32(1) for k, v in ByJax("mixer").weights.items()}
    with TrainingSession(small(update=update).data) as session:
        session.fit(*data("mixer", 1, 7), epochs=2, learning_rate=0.02)
        if redrawn:
            session.redraw_channels(seed=1)
            session.fit(*data("mixer", 1, 7), epochs=2, learning_rate=0.02)
        merged, own, state = session.state_dict(base=base), session.state_dict(), session.state()
    assert merged.keys() == own.keys() == {"left", "heads", "head"}
    for name in ("left", "heads"):
        change = state[f"{name}/change"]
        assert np.abs(change).max() > 1e-3
        rows = rows_of("mixer", name, np.array(own[name] if redrawn else base[name]))
        if not redrawn:
            rows[..., state[f"{name}/channels"], :] += change.reshape(*rows.shape[:-2], -1, rows.shape[-1])
        np.testing.assert_allclose(rows_of("mixer", name, np.asarray(merged[name])), rows, atol=1e-6)
    fixed = {"twice": Channels(0.5), "head": 1}
    with (
        TrainingSession(built_with("mixer", update=fixed, signatures=("train",)).data) as session,
        pytest.raises(UsageError, match="does not say how the channels of twice lie in it"),
    ):
        session.state_dict(base=base)


def test_recipes_and_names_say_that_channels_are_redrawn() -> None:
    table = {"a": {"channels": 0.5, "redrawn": True}, "b": {"channels": 0.5}}
    assert resolve_update(table).rules == {"a": Channels(0.5, redrawn=True), "b": Channels(0.5)}
    assert update_scheme("channels-20-redrawn").adapter == Channels(0.2, redrawn=True)
    assert update_scheme("channels-20").adapter == Channels(0.2)
    with pytest.raises(UsageError, match="unknown update scheme 'channels-20-redrewn'"):
        update_scheme("channels-20-redrewn")
    with pytest.raises(UsageError, match="rule 'a': Channels: redrawn is True or False, got 'yes'"):
        resolve_update({"a": {"channels": 0.5, "redrawn": "yes"}})
