"""TrainingSession against optax and NumPy, in both exports, with and without XNNPACK."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import converter
import jax_frontend
from converter.runtime import TrainingSession
from converter.runtime.data.examples import Examples
from converter.support.errors import UsageError
from tests.runtime.programs import BATCH, EXAMPLES, by_name, program, train_with_optax

STATES = ("variables", "stateless", "split")


def open_session(name: str = "mlp", state: str = "variables", xnnpack: bool = True, **options: Any) -> TrainingSession:
    return TrainingSession(program(name, state, **options).data, xnnpack=xnnpack)


def assert_weights_close(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray], scale: float = 1e-4) -> None:
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert actual[name].shape == array.shape
        assert actual[name].dtype == array.dtype
        np.testing.assert_allclose(actual[name], array, atol=scale * np.abs(array).max() + 1e-7, err_msg=name)


def batches_of(name: str, count: int, rows: int = BATCH) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    return [(*EXAMPLES[name].data(rows, seed), np.ones(rows, np.float32)) for seed in range(count)]


@functools.cache
def oracle(name: str, optimizer: str, rate: float) -> tuple[list[float], dict[str, np.ndarray]]:
    return train_with_optax(EXAMPLES[name], optimizer, batches_of(name, 6), rate)


@pytest.mark.parametrize("xnnpack", [True, False])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_steps_equal_optax(name: str, optimizer: str, state: str, xnnpack: bool) -> None:
    batches, rate = batches_of(name, 6), 0.1 if optimizer == "sgd" else 0.01
    losses, weights = oracle(name, optimizer, rate)
    with open_session(name, state, xnnpack, optimizer=optimizer) as session:
        ours = [session.train(x, y, learning_rate=rate) for x, y, _ in batches]
        np.testing.assert_allclose(ours, losses, rtol=1e-4)
        assert_weights_close(session.parameters(), weights)
        session.reset()
        assert_weights_close(session.parameters(), by_name(EXAMPLES[name].params), scale=0)
        again = [session.train(x, y, learning_rate=rate) for x, y, _ in batches]
        assert again == ours


@pytest.mark.parametrize("state", STATES)
def test_parameters_of_partly_trained_weights_are_whole(state: str) -> None:
    """`{"*": 0.5}` trains the first half of the input channels and whole biases; the rest stays as it was built."""

    def trains(name: str, leaf: np.ndarray) -> np.ndarray:
        mask = np.ones_like(leaf)
        if leaf.ndim > 1:
            mask[..., leaf.shape[-2] // 2 :, :] = 0
        return mask

    batches = batches_of("cnn", 4)
    losses, weights = train_with_optax(EXAMPLES["cnn"], "sgd", batches, 0.1, trains)
    with open_session("cnn", state, update=0.5) as session:
        np.testing.assert_allclose([session.train(x, y) for x, y, _ in batches], losses, rtol=1e-4)
        assert_weights_close(session.parameters(), weights)
        frozen = session.parameters()["conv2/w"][:, :, 2:]
        np.testing.assert_array_equal(frozen, EXAMPLES["cnn"].params["conv2"]["w"][:, :, 2:])


@pytest.mark.parametrize("state", STATES)
def test_weights_and_short_batches_equal_optax(state: str) -> None:
    x, y = EXAMPLES["mlp"].data(5)
    weight = np.array([1, 0, 2, 0.5, 1], np.float32)
    losses, weights = train_with_optax(EXAMPLES["mlp"], "sgd", [(x, y, weight)] * 3, 0.1)
    with open_session(state=state) as session:
        np.testing.assert_allclose([session.train(x, y, weight=weight) for _ in range(3)], losses, rtol=1e-5)
        assert_weights_close(session.parameters(), weights)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("rows", [1, 8, 21])
def test_evaluate_and_infer_take_any_number_of_rows(rows: int, state: str) -> None:
    example = EXAMPLES["cnn"]
    x, y = example.data(rows)
    with open_session("cnn", state) as session:
        session.train(*example.data(BATCH, seed=9))
        logits = np.asarray(example.apply(_tree(example.params, session.parameters()), x))
        np.testing.assert_allclose(session.infer(x), logits, rtol=1e-4, atol=1e-5)
        shifted = logits - logits.max(1, keepdims=True)
        losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(rows), y]
        hits = logits.argmax(1) == y
        result = session.evaluate(x, y)
        assert result["loss"] == pytest.approx(losses.mean(), rel=1e-4)
        assert result["accuracy"] == pytest.approx(hits.mean())
        weight = np.arange(rows, dtype=np.float32) + 1
        result = session.evaluate(x, y, weight=weight)
        assert result["loss"] == pytest.approx(np.average(losses, weights=weight), rel=1e-4)
        assert result["accuracy"] == pytest.approx(np.average(hits, weights=weight))
        assert session.infer(x).shape == (rows, 3)


def test_a_regression_has_no_accuracy() -> None:
    model = jax_frontend.Model(lambda p, x: x @ p["w"], {"w": np.eye(3, dtype=np.float32)}, [_rows(3)])
    with TrainingSession(converter.build(model, loss="mse", batch=4).data) as session:
        x = np.ones((6, 3), np.float32)
        assert session.evaluate(x, x + 2) == {"loss": pytest.approx(4.0)}
        assert session.train(x[:4], x[:4] + 2) == pytest.approx(4.0)


def test_several_inputs_and_outputs() -> None:
    def apply(params: Any, image: Any, scale: Any) -> Any:
        return (image + scale) @ params["w"], (image - scale) @ params["w"]

    def loss(outputs: Any, y: Any) -> Any:
        return ((outputs[0] - y) ** 2 + outputs[1] ** 2).mean(-1)

    rng = np.random.default_rng(0)
    w, a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 3), (6, 3), (6, 3)))
    built = converter.build(jax_frontend.Model(apply, {"w": w}, [_rows(3), _rows(3)]), loss=loss, batch=4)
    names = [spec.name for spec in built.manifest.signatures["infer"].taking("input")]
    with TrainingSession(built.data) as session:
        for ours, theirs in zip(session.infer((a, b)), apply({"w": w}, a, b), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        first = session.train({names[0]: a[:4], names[1]: b[:4]}, b[:4], learning_rate=0.05)
        assert session.train([a[:4], b[:4]], b[:4], learning_rate=0.05) < first
        with pytest.raises(UsageError, match="2 inputs"):
            session.infer(a)
        with pytest.raises(UsageError, match="no input 'imag'"):
            session.infer({"imag": a})


def test_fit_learns_and_repeats() -> None:
    x, y = EXAMPLES["cnn"].data(43)
    histories = []
    for state in STATES:
        with open_session("cnn", state) as session:
            before = session.evaluate(x, y)
            history = session.fit(x, y, epochs=12, learning_rate=0.2, progress=True, validation=(x, y))
            after = session.evaluate(x, y)
        assert after["loss"] < 0.7 * before["loss"]
        assert after["accuracy"] > before["accuracy"]
        assert history.keys() == {"loss", "seconds", "validation_loss", "validation_accuracy"}
        assert history["validation_loss"][-1] == after["loss"]
        assert len(history["loss"]) == 12
        histories.append(history["loss"])
    assert histories[0] == histories[1]


def test_fit_sees_every_row_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = EXAMPLES["mlp"].data(21)
    weight = np.ones(21, np.float32)
    weight[:3] = 0
    seen: list[np.ndarray] = []
    counted: list[int] = []

    def rate(step: int) -> float:
        counted.append(step)
        return 0.01

    with open_session() as session:
        step = session._step

        def spy(examples: Examples, learning_rate: float, signature: str) -> float:
            seen.append(examples.arrays["x"])
            return step(examples, learning_rate, signature)

        monkeypatch.setattr(session, "_step", spy)
        session.fit(x, y, epochs=2, weight=weight, learning_rate=rate, progress=False)
    first, second = np.concatenate(seen[:3]), np.concatenate(seen[3:])
    for rows in (first, second):
        np.testing.assert_array_equal(np.sort(rows[:, 0]), np.sort(x[3:, 0]))
    assert not np.array_equal(first, second)
    assert counted == list(range(6))


def test_fit_writes_nothing_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with open_session() as session:
        capfd.readouterr()
        session.fit(*EXAMPLES["mlp"].data(9), epochs=1, progress=True)
    assert capfd.readouterr() == ("", "")


def test_the_callers_arrays_are_read_only_to_us() -> None:
    x, y = EXAMPLES["mlp"].data(5)
    x.setflags(write=False)
    y.setflags(write=False)
    with open_session() as session:
        session.train(x, y)
        kept = session.infer(x)
        copy = kept.copy()
        session.infer(x + 1)
        session.parameters()["layers/0/w"][...] = 0
        session.state()["layers/0/w"][...] = 0
        np.testing.assert_array_equal(kept, copy)
        np.testing.assert_array_equal(session.infer(x), copy)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "uint8", "bool"])
def test_numbers_that_do_not_change_are_taken(dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 2, (BATCH, 12))
    with open_session() as session:
        np.testing.assert_array_equal(session.infer(x.astype(dtype)), session.infer(x.astype(np.float32)))
        np.testing.assert_array_equal(session.infer(x.tolist()), session.infer(x.astype(np.float32)))
        session.train(x.astype(dtype), [0, 1, 2, 3, 0, 1, 2, 3])


X, Y = EXAMPLES["mlp"].data(BATCH)
BAD = {
    "one row without rows": (X[0], Y, r"x: expected float32 \[rows, 12\], got float32 \[12\]. The first axis"),
    "wrong width": (X[:, :5], Y, r"x: expected float32 \[rows, 12\], got float32 \[8, 5\]"),
    "no rows": (X[:0], Y[:0], "x: there are no rows"),
    "too many rows": (np.tile(X, (2, 1)), np.tile(Y, 2), "at most 8 rows.* got 16: call fit"),
    "rows differ": (X, Y[:5], "x has 8 rows and y has 5"),
    "text": ([["a"] * 12], Y[:1], "x: expected float32"),
    "ragged": ([[1.0], [1.0, 2.0]], Y[:2], "no array"),
    "complex": (X.astype(complex), Y, "got complex128"),
    "large integers": (np.full((8, 12), 2**24 + 1), Y, "float32 cannot hold"),
    "NaN": (np.where(np.arange(8)[:, None] == 3, np.nan, X), Y, "x: row 3 holds NaN"),
    "infinity": (np.where(np.arange(8)[:, None] == 7, -np.inf, X), Y, "x: row 7 holds NaN or inf"),
    "too large for float32": (X.astype(float) * 1e300, Y, "is larger than float32 can hold"),
    "label too large": (X, np.full(8, 4), "y: labels go from 0 to 3 in this program, and these from 4 to 4"),
    "label below zero": (X, np.full(8, -1), "y: labels go from 0 to 3"),
    "label of 64 bits": (X, np.full(8, 2**32), "y: .* int32 cannot hold"),
    "broken labels": (X, Y + 0.5, r"y: expected int32 \[rows\], whole numbers, and \d.5 is none"),
    "labels that are not there": (X, np.where(Y == 1, np.nan, Y), "whole numbers, and nan is none"),
    "infinite labels": (X, np.full(8, np.inf), "int32 cannot hold"),
    "one-hot labels": (X, np.eye(4)[Y], r"int32 \[rows\], got float64 \[8, 4\]. One-hot .* pass y.argmax\(-1\)"),
    "a row of labels": (X, Y[None], r"got int32 \[1, 8\]"),
    "two columns of labels": (X, np.stack([Y, Y], 1), r"got int32 \[8, 2\]"),
    "a generator function": (lambda: iter([]), Y, "x: .* a function: call it"),
    "no labels": (X, None, "y: missing"),
    "unknown input": ({"z": X}, Y, "no input 'z'. It has x"),
    "no input": ({}, Y, "the input x is missing"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("state", STATES)
def test_bad_examples_are_refused_and_change_nothing(state: str) -> None:
    with open_session(state=state) as session:
        session.train(X, Y)
        before = session.state()
        for x, y, message in BAD.values():
            with pytest.raises(UsageError, match=message):
                session.train(x, y)
        with pytest.raises(UsageError, match="row 3 holds NaN"):
            session.fit(BAD["NaN"][0], Y)
        for weight, message in (
            (np.zeros(8), "all rows have the weight 0"),
            (np.full(8, -1.0), "below zero"),
            (np.full(8, np.nan), "weight: row 0 holds NaN"),
            (np.ones(3), "x has 8 rows and weight has 3"),
            (1.0, r"weight: expected float32 \[rows\]"),
        ):
            for method in (session.train, session.evaluate, session.fit):
                with pytest.raises(UsageError, match=message):
                    method(X, Y, weight=weight)
        rates: tuple[Any, ...] = (np.nan, np.inf, "fast", -1, True)
        for rate in rates:
            with pytest.raises(UsageError, match="learning_rate"):
                session.train(X, Y, learning_rate=rate)
        counts: tuple[Any, ...] = (0, -1, 1.5)
        for epochs in counts:
            with pytest.raises(UsageError, match="epochs"):
                session.fit(X, Y, epochs=epochs)
        for name, array in session.state().items():
            np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_bad_threads(threads: Any) -> None:
    with pytest.raises(UsageError, match="threads"):
        TrainingSession(program().data, threads=threads)


@pytest.mark.parametrize("state", STATES)
def test_two_threads_equal_one(state: str) -> None:
    with open_session(state=state) as session:
        thread = TrainingSession(program(state=state).data, threads=np.int64(2))
        assert thread.train(X, Y) == pytest.approx(session.train(X, Y))


def test_threads_take_turns() -> None:
    """Eight threads train, evaluate, infer, save at once: the steps add up as if they were made one by one."""
    data = [EXAMPLES["mlp"].data(BATCH, seed) for seed in range(2)]
    with open_session() as session, open_session() as alone:
        failures: list[BaseException] = []

        def work(seed: int) -> None:
            try:
                for _ in range(40):
                    session.train(*data[0], learning_rate=1e-3)
                    session.infer(data[seed][0])
                    session.evaluate(*data[seed])
                    session.parameters()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in (0, 1, 0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        for _ in range(160):
            alone.train(*data[0], learning_rate=1e-3)
        for name, array in alone.state().items():
            np.testing.assert_array_equal(session.state()[name], array)


def test_close_while_another_thread_fits() -> None:
    session, raised = open_session(), []

    def work() -> None:
        try:
            session.fit(X, Y, epochs=1_000_000, learning_rate=1e-30, progress=False)
        except UsageError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    session.close()
    thread.join(20)
    assert not thread.is_alive()
    assert "closed" in str(raised[0])


def test_a_closed_session_says_so(tmp_path: Path) -> None:
    with open_session() as session:
        session.save(tmp_path / "s")
    session.close()
    assert "closed" in repr(session)
    for call in (
        lambda: session.train(X, Y),
        lambda: session.evaluate(X, Y),
        lambda: session.infer(X),
        lambda: session.fit(X, Y),
        session.parameters,
        session.state,
        session.reset,
        lambda: session.save(tmp_path / "s"),
        lambda: session.restore(tmp_path / "s"),
    ):
        with pytest.raises(UsageError, match="closed"):
            call()


def _rows(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((1, *shape), np.float32)


def _tree(like: Any, named: dict[str, np.ndarray]) -> Any:
    return jax.tree.unflatten(jax.tree.structure(like), [named[name] for name in by_name(like)])
