"""Programs for rows of several lengths: each call takes the fewest tokens, and gives what the longest would."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pocketune
from converter.frontends import decoder as decoder_frontend
from converter.support.errors import UsageError
from tests.decoder_frontend import written

SHORT, LONG = 8, 24
RNG = np.random.default_rng(4)
IDS = RNG.integers(0, 96, (2, LONG)).astype(np.int32)


def labels(*asked: int) -> np.ndarray:
    """The next token of each row up to some place, and none behind it."""
    y = np.roll(IDS, -1, 1)
    for row, end in enumerate(asked):
        y[row, end:] = -1
    return y


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lengths") / "net.gguf"
    written.write(path, "qwen2")
    return path


def build(net: Path, length: Any, **options: Any) -> pocketune.Program:
    known = {"update": "lora-2:q_proj,v_proj", "batch": 2, "optimizer": "adam", "check": False}
    return pocketune.build(net, length=length, **known | options)


@pytest.fixture(scope="module")
def program(net: Path) -> pocketune.Program:
    return build(net, (LONG, SHORT), signatures=("train", "evaluate", "infer", "generate"))


def called(session: Any, work: Callable[[], Any]) -> tuple[set[str], Any]:
    """Which signatures that take rows some work calls, and what it gives."""
    running, names = session._running, set[str]()
    ready = running.ready

    def noted(name: str) -> Any:
        names.add(name)
        return ready(name)

    running.ready = noted
    given = work()
    running.ready = ready
    return names, given


@pytest.mark.quick
def test_steps_are_those_of_padded_rows(net: Path, program: pocketune.Program) -> None:
    assert program.manifest.lengths == (SHORT, LONG)
    one = build(net, LONG)
    with pocketune.TrainingSession(program.data) as ours, pocketune.TrainingSession(one.data) as whole:
        for asked, name in (((8, 3), "train_length_8"), ((9, 1), "train"), ((1, 2), "train_length_8")):
            names, loss = called(ours, partial(ours.train, IDS, labels(*asked), 0.05))
            assert names == {name}
            np.testing.assert_allclose(loss, whole.train(IDS, labels(*asked), 0.05), rtol=1e-5)
        cut = ours.train(IDS[:, :5], labels(5, 4)[:, :5], 0.05)  # rows of fewer tokens are the same
        np.testing.assert_allclose(cut, whole.train(IDS, labels(5, 4), 0.05), rtol=1e-5)
        state, expected = ours.state(), whole.state()
        for tensor, array in expected.items():
            np.testing.assert_allclose(state[tensor], array, rtol=1e-3, atol=1e-6)
        names, figures = called(ours, lambda: ours.evaluate(IDS, labels(7, 7)))
        assert names == {"evaluate_length_8"}
        wanted = whole.evaluate(IDS, labels(7, 7))
        np.testing.assert_allclose(list(figures.values()), list(wanted.values()), rtol=1e-4)
        logits = whole.infer(IDS)
        for tokens, name in ((5, "infer_length_8"), (8, "infer_length_8"), (9, "infer"), (LONG, "infer")):
            names, given = called(ours, partial(ours.infer, IDS[:, :tokens]))
            assert names == {name}
            np.testing.assert_allclose(given, logits[:, :tokens], rtol=1e-3, atol=1e-4)
        assert len(list(pocketune.runtime.generate(ours, IDS[0, :12], most=6))) == 6  # in the longest row


@pytest.mark.slow
def test_a_short_step_is_that_of_jax(net: Path) -> None:
    trained = [f"model.layers.1.self_attn.{name}_proj.weight" for name in "qkvo"]
    program = build(net, (SHORT, LONG), update=dict.fromkeys(trained, 1.0), optimizer="sgd", signatures=("train",))
    model = decoder_frontend.Model(net, length=SHORT).jax_model()
    params = {name: jnp.asarray(np.asarray(tensor)) for name, tensor in model.params.items()}
    x, y = IDS[:, :SHORT], labels(8, 3)[:, :SHORT]

    def loss(moved: dict[str, jax.Array]) -> jax.Array:
        log = jax.nn.log_softmax(model.apply(params | moved, x))
        picked = -jnp.take_along_axis(log, np.maximum(y, 0)[..., None], -1)[..., 0] * (y >= 0)
        return (picked.sum(1) / (y >= 0).sum(1)).mean()

    expected, gradients = jax.value_and_grad(loss)({name: params[name] for name in trained})
    with pocketune.TrainingSession(program.data) as session:
        names, found = called(session, lambda: session.train(IDS, labels(8, 3), 0.1))
        assert names == {f"train_length_{SHORT}"}
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        after = session.parameters()
        for name in trained:
            np.testing.assert_allclose(after[name] - params[name], -0.1 * gradients[name], rtol=1e-3, atol=1e-6)


def test_each_batch_of_a_training_takes_its_own(program: pocketune.Program) -> None:
    x, y = np.concatenate([IDS, IDS]), np.concatenate([labels(4, 4), labels(20, 20)])
    with pocketune.TrainingSession(program.data) as session:
        names, _ = called(session, lambda: session.fit(x, y, 1, 0.01, progress=False, shuffle=False))
        assert names == {"train", "train_length_8"}
        names, _ = called(session, lambda: session.fit([(x[:2, :6], y[:2, :6])], epochs=1, progress=False))
        assert names == {"train_length_8"}


def test_other_rows_are_refused(program: pocketune.Program) -> None:
    with pocketune.TrainingSession(program.data) as session:
        for x, y, said in (
            (np.zeros((2, 25), np.int32), np.zeros((2, 25), np.int32), "rows of 25 tokens, and those of this program"),
            (IDS[:, :9], IDS[:, :8], r"y: expected int32 \[rows, 9\], got int32 \[2, 8\]"),
            ([[1, 2], [1]], [[1, 2], [1]], "this is no array"),
            (IDS[:, :4] + 200, IDS[:, :4], "an index in an input is out of range"),
        ):
            with pytest.raises(UsageError, match=said):
                session.train(x, y)


@pytest.mark.parametrize(
    ("length", "options", "said"),
    [
        ((SHORT, 999), {}, "from 1 to the 64 that .* was trained with, not 999"),
        ((SHORT, "24"), {}, "not '24'"),
        ((), {}, "length is a number of tokens"),
        ((SHORT, LONG), {"loss": lambda out, y: out.mean((1, 2))}, "another loss than next_token"),
        ((SHORT, LONG), {"signatures": ("train", "infer", "infer_1")}, "infer for other numbers of rows"),
        ((SHORT, LONG), {"signatures": ("train", "features")}, "the signature 'features'"),
    ],
)
def test_what_needs_one_length_is_refused(length: Any, options: Any, said: str, net: Path) -> None:
    with pytest.raises(UsageError, match=said):
        build(net, length, **options)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", written.ARCHITECTURES)
@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": 1},
        {"state": "stateless"},
        {"state": "split"},
        {"state": "stateless", "micro_batch": 1},
        {"update": "full"},
        {"update": "sparse"},
        {"blocks": "on"},
        {"frozen": "int4-blockwise", "blocks": "on"},
        {"frozen": "int4"},
        {"frozen": "float16"},
        {"target": "tflite-2.16"},
        {"target": "gpu,litert-2"},
        {"update": {"*q_proj.weight": pocketune.LoRA(2, 4, dropout=0.1)}},
    ],
    ids=str,
)
def test_all_forms_of_a_step_have_it(architecture: str, options: dict[str, Any], tmp_path: Path) -> None:
    entries = written.metadata(architecture, feed_forward_length=512)
    written.write(tmp_path / "net.gguf", architecture, entries)
    ours = build(tmp_path / "net.gguf", (SHORT, 12, LONG), **options)
    one = build(tmp_path / "net.gguf", LONG, **options)
    step = ours.manifest.step
    with pocketune.TrainingSession(ours.data) as session, pocketune.TrainingSession(one.data) as whole:
        for asked, tokens in (((8, 3), SHORT), ((12, 1), 12), ((20, 24), LONG), ((2, 2), SHORT)):
            names, loss = called(session, partial(session.train, IDS, labels(*asked), 0.01))
            assert (step if tokens == LONG else f"{step}_length_{tokens}") in names
            expected = whole.train(IDS, labels(*asked), 0.01)
            if not isinstance(options.get("update"), dict):  # what is dropped is another draw
                np.testing.assert_allclose(loss, expected, rtol=1e-4)
        session.save(tmp_path / "net.state")
        whole.restore(tmp_path / "net.state")
        figures = [s.evaluate(IDS, labels(7, 7))["loss"] for s in (session, whole)]
        np.testing.assert_allclose(*figures, rtol=1e-4)


@pytest.mark.slow
def test_texts_that_share_rows_have_it(net: Path) -> None:
    model = decoder_frontend.Model(net, length=(SHORT, LONG), packed=True)
    whole = decoder_frontend.Model(net, length=LONG, packed=True)
    options: dict[str, Any] = {"update": "lora-2:q_proj", "batch": 2, "optimizer": "adam"}
    segments = np.repeat([[0] * 4 + [1] * (LONG - 4)], 2, 0).astype(np.int32)
    programs = [pocketune.build(one, **options) for one in (model, whole)]
    first, second = (pocketune.TrainingSession(one.data) for one in programs)
    for asked in ((7, 5), (20, 3)):
        losses = [session.train((IDS, segments), labels(*asked), 0.05) for session in (first, second)]
        np.testing.assert_allclose(*losses, rtol=1e-5)
    x, y = [IDS[:, :6], segments[:, :6]], labels(6, 3)[:, :6]
    np.testing.assert_allclose(first.train(x, y, 0.05), second.train((IDS, segments), labels(6, 3), 0.05), rtol=1e-5)
    given = first.infer(x)
    np.testing.assert_allclose(given, second.infer((IDS, segments))[:, :6], rtol=1e-3, atol=1e-4)
