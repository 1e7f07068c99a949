"""Each example builds, computes what its own library computes, and trains under its recommended sparse scheme."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import converter
from converter.cli.recipe import Recipe
from converter.cli.resolve import resolve
from converter.driver.models import import_model
from converter.ir import evaluate
from converter.support.errors import UsageError
from examples import DEFAULT, EXAMPLES
from examples.data import digits

ROOT = Path(__file__).resolve().parents[2]

#: Small ones where the default is not.
OPTIONS: dict[str, dict[str, Any]] = {
    "digits-cnn": {"pretrained": False},
    "mobilenetv2": {"size": 32},
    "efficientnet-lite": {"pretrained": False, "size": 32, "width": 0.25},
    "efficientnet-lite-torch": {"pretrained": False, "size": 32, "width": 0.25},
    "flax-cnn": {"size": 8, "width": 4},
    "minilm": {"pretrained": False, "length": 12, "width": 32, "heads": 4, "vocabulary": 50},
    "encoder": {"length": 12, "width": 32, "vocabulary": 50},
    "mcunet": {"size": 32, "width": 0.25},
    "proxylessnas": {"size": 32, "depth": 4},
    "vit": {"size": 16, "patch": 8, "layers": 2, "width": 24},
    "distilbert": {"length": 12, "width": 24, "heads": 2, "layers": 1, "vocabulary": 50},
    "imu": {"pretrained": False, "width": 8},
    "resemblyzer": {"pretrained": False, "frames": 8, "width": 16},
    "keyboard": {"pretrained": False, "length": 12, "width": 16},
    "llama": {"length": 12, "width": 32, "heads": 4, "key_heads": 2, "layers": 2, "vocabulary": 50},
}


#: Left to the slow run: convolutional nets of many blocks, of which MobileNetV2 is the one in the quick run.
SLOW = ("mcunet", "proxylessnas", "efficientnet-lite", "efficientnet-lite-torch")
#: What a classifier learns fast enough with of features that are of length 1.
RATES = {"resemblyzer": 0.1}
TORCH = ("efficientnet-lite-torch", "resemblyzer")
#: Files of packages, of which there is no small one: tests/examples/test_pretrained.py has them.
FILES = ("resnet8",)
NAMES = [name for name, example in EXAMPLES.items() if not example.shapes_only and name not in FILES]


@pytest.fixture(scope="module", params=[pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in NAMES])
def built(request: pytest.FixtureRequest) -> tuple[str, Any]:
    if request.param in TORCH:
        pytest.importorskip("torch", reason="there is no PyTorch: scripts/torch/install .venv/bin/python")
    return request.param, EXAMPLES[request.param].build(**OPTIONS.get(request.param, {}))


def batch(name: str, rows: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    return EXAMPLES[name].sample_batch(rows, seed, **OPTIONS.get(name, {}))


def outputs(model: Any, *x: np.ndarray) -> np.ndarray:
    """What the model's own library computes."""
    if hasattr(model, "apply"):
        return np.asarray(model.apply(model.params, *x))
    if hasattr(model, "module"):
        import torch

        with torch.no_grad():
            return model.module(*map(torch.from_numpy, x)).numpy()
    return np.asarray(model(*x, training=False))


def test_the_forward_graph_computes_what_the_model_does(built: tuple[str, Any]) -> None:
    name, model = built
    *x, _ = batch(name, 3)
    expected = outputs(model, *x)
    assert np.abs(expected).max() > 0.05  # a dead signal would prove nothing
    found = evaluate(import_model(model, 3).graph, x)[0]["output"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_the_sparse_scheme_fits_and_is_cheaper_than_full(built: tuple[str, Any]) -> None:
    name, model = built
    example = EXAMPLES[name]
    sparse, full = (
        converter.build(model, loss=example.loss, update=update, batch=4, check=False).costs
        for update in (example.sparse, "full")
    )
    for figure in ("trained_parameters", "flops_backward", "residual_bytes", "state_bytes"):
        assert sparse[figure] < full[figure]


def test_a_few_steps_lower_the_loss(built: tuple[str, Any]) -> None:
    name, model = built
    *x, y = batch(name, 8)
    program = converter.build(model, loss=EXAMPLES[name].loss, optimizer="adam", update=EXAMPLES[name].sparse, batch=8)
    rate = RATES.get(name, 3e-3)
    with converter.runtime.TrainingSession(program.data) as session:
        losses = [
            session.train(x, y, learning_rate=rate) if len(x) > 1 else session.train(x[0], y, rate) for _ in range(10)
        ]
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("name", ["mlp", "lenet", "flax-cnn", "encoder"])
def test_a_model_is_the_same_each_time(name: str) -> None:
    (first, *_), (second, *_) = ([p.value for p in _graph(name).parameters.values()] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def _graph(name: str) -> Any:
    return import_model(EXAMPLES[name].build(**OPTIONS.get(name, {})), 1).graph


def test_batches_are_the_same_for_the_same_seed(built: tuple[str, Any]) -> None:
    name, _ = built
    for first, second in zip(batch(name, 6, 1), batch(name, 6, 1), strict=True):
        np.testing.assert_array_equal(first, second)
    assert any((a != b).any() for a, b in zip(batch(name, 6, 1), batch(name, 6, 2), strict=True))


def test_batch_statistics_of_flax_are_no_parameters() -> None:
    graph = _graph("flax-cnn")
    assert {p.name.rpartition("/")[2] for p in graph.parameters.values()} == {"kernel", "scale", "bias"}


def test_what_is_padding_does_not_count_in_the_encoder() -> None:
    example, options = EXAMPLES["encoder"], OPTIONS["encoder"]
    model = example.build(**options)
    ids = np.zeros((1, options["length"]), np.int32)
    ids[0, :4] = 5, 6, 7, 8
    before = outputs(model, ids)
    model.params["embeddings"]["tokens"][0] += 1.0
    np.testing.assert_allclose(outputs(model, ids), before, atol=1e-6)


def test_the_table() -> None:
    assert next(iter(EXAMPLES)) == DEFAULT
    for name, example in EXAMPLES.items():
        assert example.name == name
        assert len(example.description) < 110


def test_listing_the_examples_loads_no_framework() -> None:
    code = "import sys, examples; print([m for m in ('jax', 'keras', 'flax', 'sklearn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "examples.flax_cnn", raising=False)
    monkeypatch.setitem(sys.modules, "flax", None)
    with pytest.raises(UsageError, match=r"the example flax-cnn needs flax: pip install 'pocketune\[flax\]'"):
        resolve(Recipe(model="flax-cnn")).model()


# -- digits ------------------------------------------------------------------------------------------------------------


def test_no_sample_of_a_person_was_pretrained_on_or_is_judged_and_learned_from() -> None:
    pretraining, held_out = digits.load()
    assert len(pretraining.y) + len(held_out.y) == 1797
    for person in digits.PEOPLE:
        theirs, judged = person.samples(6)
        assert np.bincount(theirs.y).tolist() == [6] * 10
        assert len(theirs.y) + len(judged.y) == len(held_out.y)
        written = {image.tobytes() for image in person.write(held_out.x)}
        assert {image.tobytes() for image in (*theirs.x, *judged.x)} == written


def test_resampling_agrees_with_scipy() -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    rng = np.random.default_rng(0)
    x = rng.random((5, 8, 8, 1), np.float32)
    matrices, shifts = np.eye(2) + rng.uniform(-0.3, 0.3, (5, 2, 2)), rng.uniform(-2, 2, (5, 2))
    for image, matrix, shift, ours in zip(x, matrices, shifts, digits.resampled(x, matrices, shifts), strict=True):
        padded = np.pad(image[..., 0], 4)  # so that scipy too fades into paper at the border
        offset = 7.5 - matrix @ np.full(2, 7.5) + shift
        theirs = ndimage.affine_transform(padded, matrix, offset, order=1, mode="constant")[4:12, 4:12]
        np.testing.assert_allclose(ours[..., 0], theirs, atol=1e-5)


def test_a_person_who_differs_in_nothing_but_the_ink() -> None:
    x = digits.load()[1].x[:20]
    np.testing.assert_allclose(digits.Person(0, 0, 0).write(x), 1 - x, atol=1e-6)
    assert (digits.Person(0, 1, 0).write(x) <= 1 - x + 1e-6).all()
