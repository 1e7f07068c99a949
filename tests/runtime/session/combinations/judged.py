"""A session beside its oracle: each thing that it does with classes, by JAX, optax and scikit-learn of its features."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ai_edge_litert.interpreter import Interpreter
from scipy.special import softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.neighbors import NearestCentroid

from converter.program.file import read_program
from converter.runtime import TrainingSession
from converter.runtime.export import export_inference
from converter.support.errors import UsageError
from tests.runtime.session.combinations.drawn import BATCH, OWN, Combination, rows_of

RATE = 0.05
_OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(RATE),
    "momentum": lambda: optax.sgd(RATE, momentum=0.9),
    "adam": lambda: optax.adam(RATE),
}


class Judged:
    """A session, and what it has to be like.

    Attributes:
        done: what was done so far, for messages.
    """

    def __init__(self, one: Combination, program: bytes, head: str | None, folder: Path, seed: int) -> None:
        """Opens a session of a program, or of a head of it."""
        self._one, self._program, self._head, self._folder = one, program, head, folder
        self._rng = np.random.default_rng(seed)
        self._session = TrainingSession(program, head=head)
        layer = self._session.manifest.head
        assert layer is not None
        self._layer = layer
        labels = [str(label) for label in range(OWN)]
        self._names: list[str | None] = [*labels, *[None] * one.later]
        self._tx = _OPTIMIZERS[one.optimizer]()
        self._weights = self._read()
        self._slots = self._tx.init(self._weights)
        self._is_means, self._came = False, 0
        self.done: list[str] = []

    def close(self) -> None:
        """Gives the session's memory back."""
        self._session.close()

    def do(self, what: str) -> None:
        """Does something, and looks at all of the session after it."""
        self.done.append(what)
        getattr(self, f"_{what}")()
        self.look()

    def look(self) -> None:
        """Compares names, weights, outputs, losses and accuracy."""
        if self._one.later:
            assert self._session.classes() == self._names
        found = self._read()
        for name, wanted in self._weights.items():
            np.testing.assert_allclose(found[name][..., self._known], wanted[..., self._known], rtol=1e-4, atol=2e-5)
        x, y = self._rows(7)
        shares = self._shares(self._features(x))
        np.testing.assert_allclose(_as_shares(self._session.infer(x), self._one), shares, atol=2e-5)
        judged = self._session.evaluate(x, self._targets(y))
        assert judged["loss"] == pytest.approx(
            float(self._losses(self._weights, self._features(x), y).mean()), rel=1e-4
        )
        assert judged["accuracy"] == pytest.approx((shares.argmax(1) == y).mean())

    # -- what may be done ----------------------------------------------------------------------------------------------

    def _steps(self) -> None:
        for _ in range(3):
            x, y = self._rows(BATCH)
            features = self._features(x)
            loss, slopes = jax.value_and_grad(lambda w: self._losses(w, features, y).mean())(self._weights)  # noqa: B023
            updates, self._slots = self._tx.update(slopes, self._slots, self._weights)
            self._weights = jax.tree.map(np.asarray, optax.apply_updates(self._weights, updates))
            assert self._session.train(x, self._targets(y), learning_rate=RATE) == pytest.approx(float(loss), rel=1e-4)
        self._is_means = False

    def _means(self) -> None:
        x, y = self._rows(5 * len(self._known), each=True)
        self._session.set_class_means(x, y)
        features, (others, _) = self._features(x), self._rows(9)
        oracle = NearestCentroid().fit(features, y)
        distances = ((self._features(others)[:, None] - oracle.centroids_) ** 2).sum(2)
        found = _centred(self._scores(others))
        wanted = _centred(-distances / 2)
        sharpness = (found * wanted).sum() / (wanted**2).sum()
        assert sharpness > 0
        np.testing.assert_allclose(found, sharpness * wanted, rtol=1e-3, atol=1e-3 * np.abs(found).max())
        self._set_anew()
        self._is_means = True

    def _discriminant(self) -> None:
        x, y = self._rows(6 * len(self._known), each=True)
        shrinkage = ["auto", 0.2][self._rng.integers(2)]
        self._session.set_class_means(x, y, shrinkage)
        oracle = LinearDiscriminantAnalysis("lsqr", shrinkage).fit(self._features(x), y)
        others, _ = self._rows(9)
        found = softmax(self._scores(others), 1)
        np.testing.assert_allclose(found, oracle.predict_proba(self._features(others)), atol=2e-5)
        self._set_anew()
        self._is_means = False

    def _add(self) -> None:
        name, with_rows = f"new {self._came}", bool(self._rng.random() < 0.5)
        self._came += 1
        x = self._rows(5)[0] if with_rows else None
        if None not in self._names or (with_rows and not self._is_means):
            with pytest.raises(UsageError):
                self._session.add_class(name, x)
            return
        before, known = self._read(), self._known
        label = self._session.add_class(name, x)
        assert label == self._names.index(None)
        self._names[label] = name
        self._weights = self._read()
        for kind, array in before.items():
            np.testing.assert_array_equal(self._weights[kind][..., known], array[..., known])
        column = self._weights["w"][:, label]
        if x is None:
            assert not column.any()
        else:
            mean = self._features(x).mean(0)
            np.testing.assert_allclose(column / np.linalg.norm(column), mean / np.linalg.norm(mean), atol=1e-5)
        self._slots_begin_again(label)

    def _forget(self) -> None:
        came = [label for label in self._known if label >= OWN]
        if not came:
            with pytest.raises(UsageError):
                self._session.forget_class("0")
            return
        label = int(self._rng.choice(came))
        self._session.forget_class(str(self._names[label]))
        self._names[label] = None
        self._slots_begin_again(label)

    def _rename(self) -> None:
        label = int(self._rng.choice(self._known))
        name = f"other {self._came}"
        self._came += 1
        if not self._one.later:
            with pytest.raises(UsageError):
                self._session.rename_class(str(self._names[label]), name)
            return
        self._session.rename_class(str(self._names[label]), name)
        self._names[label] = name

    def _store(self) -> None:
        path = self._folder / "kept.state"
        path.unlink(missing_ok=True)
        self._session.save(path)
        self._session.close()
        self._session = TrainingSession(self._program, head=self._head)
        self._session.restore(path)

    def _export(self) -> None:
        path, (x, _) = self._folder / "plain.tflite", self._rows(BATCH)
        export_inference(read_program(self._program, self._head), path, self._session.state(), batch=BATCH)
        run = Interpreter(str(path)).get_signature_runner()
        (name,) = run.get_input_details()
        (found,) = run(**{name: x}).values()
        np.testing.assert_allclose(_as_shares(found, self._one), self._shares(self._features(x)), atol=2e-5)

    # -- the oracle ----------------------------------------------------------------------------------------------------

    @property
    def _known(self) -> list[int]:
        return [label for label, name in enumerate(self._names) if name is not None]

    def _read(self) -> dict[str, np.ndarray]:
        """Return weights [inputs, classes] and biases [classes] as the session has them."""
        held = self._session.parameters()
        kernel = held[self._layer.kernel]
        return {"w": kernel.T if self._layer.axis == 0 else kernel, "b": held[self._layer.bias]}

    def _features(self, x: np.ndarray) -> np.ndarray:
        kept = np.asarray(self._session.features(x), np.float64).reshape(len(x), -1)
        return self._layer.scale * (kept - self._layer.zero_point)

    def _scores(self, x: np.ndarray) -> np.ndarray:
        """Return the logits of known classes by the weights of the session; `look` compares what it infers."""
        held = {kind: array.astype(np.float64)[..., self._known] for kind, array in self._read().items()}
        return self._features(x) @ held["w"] + held["b"]

    def _shares(self, features: np.ndarray) -> np.ndarray:
        """Return probabilities [rows, classes], 0 of free ones."""
        held = {kind: np.asarray(array, np.float64)[..., self._known] for kind, array in self._weights.items()}
        shares = np.zeros((len(features), len(self._names)))
        shares[:, self._known] = softmax(features @ held["w"] + held["b"], 1)
        return shares

    def _losses(self, weights: Any, features: np.ndarray, y: np.ndarray) -> jax.Array:
        known = np.array(self._known)
        scores = features.astype(np.float32) @ weights["w"][:, known] + weights["b"][known]
        own = jax.nn.log_softmax(scores)[jnp.arange(len(y)), np.searchsorted(known, y)]
        if "focal" not in self._one.loss:
            return -own
        share = jnp.clip(jnp.exp(own), 1e-7, 1 - 1e-7)  # as Keras does
        return -0.25 * (1 - share) ** 2 * jnp.log(share)

    def _rows(self, count: int, each: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and labels of known classes; `each`: as many of each."""
        known = np.array(self._known)
        y = np.tile(known, count // len(known)) if each else self._rng.choice(known, count)
        return rows_of(self._one, count, self._rng), y.astype(np.int32)

    def _targets(self, y: np.ndarray) -> np.ndarray:
        is_sparse = self._one.loss.startswith("sparse")
        return y if is_sparse else np.eye(len(self._names), dtype=np.float32)[y]

    def _set_anew(self) -> None:
        self._weights = self._read()
        self._slots_begin_again(*range(len(self._names)))

    def _slots_begin_again(self, *labels: int) -> None:
        """Sets slots of labels to 0; a count of steps is of all."""

        def begun(slot: Any) -> np.ndarray:
            array = np.array(slot)
            if array.ndim and array.shape[-1] == len(self._names):
                array[..., list(labels)] = 0
            return array

        self._slots = jax.tree.map(begun, self._slots)


def _as_shares(outputs: np.ndarray, one: Combination) -> np.ndarray:
    """Return what a program gives as probabilities."""
    outputs = np.asarray(outputs, np.float64)
    return outputs if one.softmax and np.allclose(outputs.sum(1), 1, atol=1e-4) else softmax(outputs, 1)


def _centred(scores: np.ndarray) -> np.ndarray:
    return scores - scores.mean(1, keepdims=True)
