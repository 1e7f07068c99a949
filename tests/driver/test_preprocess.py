"""`preprocess`: a program of pixels is the model on what NumPy makes of them, in training and everywhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import pocketune
from converter.runtime import TrainingSession
from converter.support.errors import UsageError

ROWS, SIDE, CLASSES = 4, 9, 3
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (ROWS, SIDE, SIDE, 3)).astype(np.uint8)
LABELS = np.array([0, 2, 1, 1], np.int32)
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
NORMAL = ((PIXELS / 255 - MEAN) / STD).astype(np.float32)


def net(layout: str = "NHWC", images: int = 1) -> pocketune.Model:
    """Two convolutions and a head, over one image or the sum of several."""
    shapes = {"a": (3, 3, 3, 4), "b": (3, 3, 4, 5), "head": (5, CLASSES)}
    weights = {n: RNG.standard_normal(s).astype(np.float32) / 3 for n, s in shapes.items()}

    def apply(p: Any, *xs: Any) -> Any:
        x = sum(xs[1:], xs[0])
        numbers = (layout, "HWIO", layout)
        y = jax.nn.relu(lax.conv_general_dilated(x, p["a"], (2, 2), "SAME", dimension_numbers=numbers))
        y = jax.nn.relu(lax.conv_general_dilated(y, p["b"], (1, 1), "SAME", dimension_numbers=numbers))
        return y.mean((1, 2) if layout == "NHWC" else (2, 3)) @ p["head"]

    shape = (1, SIDE, SIDE, 3) if layout == "NHWC" else (1, 3, SIDE, SIDE)
    return pocketune.Model(apply, weights, [jax.ShapeDtypeStruct(shape, np.float32)] * images)


def figures(model: Any, x: Any, **options: Any) -> dict[str, np.ndarray]:
    """What a program gives, before and behind two steps."""
    given = {"batch": ROWS, "loss": "sparse_categorical_crossentropy", "optimizer": "momentum", **options}
    program = pocketune.build(model, **given)
    with TrainingSession(program.data) as session:
        found = {"infer": session.infer(x), "one": session.infer(x[:1])}
        found["losses"] = np.array([session.train(x, LABELS, 0.1) for _ in range(2)])
        found["evaluated"] = np.array([*session.evaluate(x, LABELS).values()])
        if "features" in program.manifest.signatures:
            found["features"] = session.features(x)
        return found | session.parameters()


def compare(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_program_of_pixels_trains_as_one_of_what_they_stand_for(layout: str) -> None:
    model = net(layout)
    ours = figures(model, PIXELS, preprocess="imagenet")
    theirs = figures(model, NORMAL if layout == "NHWC" else NORMAL.transpose(0, 3, 1, 2))
    compare(ours, theirs)


def test_files_too_begin_with_it(tmp_path: Path) -> None:
    """In front of the operators that are carried over from a `.tflite`, and of layers in int8."""
    pocketune.build(net("NCHW"), batch=1, check=False).export_inference(tmp_path / "net.tflite")
    path = tmp_path / "net.tflite"
    normal = np.ascontiguousarray(NORMAL.transpose(0, 3, 1, 2))
    compare(
        figures(path, PIXELS, update="head", preprocess={"layout": "NCHW", "mean": MEAN.tolist(), "std": STD.tolist()}),
        figures(path, normal, update="head"),
    )
    program = pocketune.build(
        net(), batch=ROWS, update="head", preprocess="imagenet", frozen="int8", calibration=PIXELS, check=False
    )
    assert program.quantization is not None
    assert program.quantization.output_error < 0.05


def test_in_micro_batches_with_features_and_one_row_alone() -> None:
    options = {"signatures": ("train", "evaluate", "infer", "infer_1", "features"), "update": {"head": 1}}
    model = net()
    compare(figures(model, PIXELS, preprocess="imagenet", **options), figures(model, NORMAL, **options))
    compare(figures(model, PIXELS, preprocess="imagenet", micro_batch=2), figures(model, NORMAL, micro_batch=2))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("0..1", PIXELS / 255),
        ("-1..1", PIXELS / 127.5 - 1),
        ("0..255", PIXELS.astype(np.float64)),
        ({"scale": 1, "mean": [103.9, 116.8, 123.7], "order": "BGR"}, PIXELS[..., ::-1] - [103.9, 116.8, 123.7]),
    ],
)
def test_what_becomes_of_a_pixel(given: Any, expected: np.ndarray) -> None:
    model = pocketune.Model(
        lambda p, x: (x * p["w"]).mean((1, 2)),
        {"w": np.ones(3, np.float32)},
        [jax.ShapeDtypeStruct((1, SIDE, SIDE, 3), np.float32)],
    )
    program = pocketune.build(model, batch=ROWS, loss="mse", preprocess=given, check=False)
    (spec,) = program.manifest.signatures["infer"].inputs
    assert (spec.shape, spec.dtype) == ((ROWS, SIDE, SIDE, 3), "uint8")
    with TrainingSession(program.data) as session:
        np.testing.assert_allclose(session.infer(PIXELS), expected.mean((1, 2)), rtol=1e-5, atol=1e-5)
        with pytest.raises(UsageError, match="got float32"):
            session.infer(NORMAL)
        with pytest.raises(UsageError, match="numbers that uint8 cannot hold"):
            session.infer(PIXELS.astype(np.int32) + 1)
        assert np.array_equal(session.infer(PIXELS.astype(np.int64)), session.infer(PIXELS))


def test_several_images_by_name() -> None:
    program = pocketune.build(net(images=2), batch=ROWS, preprocess={"x_1": "imagenet"}, check=False)
    dtypes = {spec.name: spec.dtype for spec in program.manifest.signatures["infer"].inputs}
    assert sorted(dtypes.values()) == ["float32", "uint8"], dtypes


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("imagnet", "unknown 'imagnet'. Did you mean 'imagenet'"),
        (3, "3 is no name"),
        ({"mean": 0, "sdt": 1}, "there is no 'sdt'. Did you mean 'std'"),
        ({"mean": [0.1, 0.2]}, "has 3 channels, and mean or std has 2 numbers"),
        ({"std": 0}, "std is 0"),
        ({"mean": "dark"}, "mean is a number, or a list"),
        ({"layout": "HWC"}, "layout is NCHW or NHWC"),
        ({"picture": "0..1"}, "the model has no input 'picture'"),
    ],
)
def test_what_is_refused(given: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        pocketune.build(net(), preprocess=given)


def test_inputs_that_are_no_images_are_refused() -> None:
    rows = pocketune.Model(lambda p, x: x * p["w"], {"w": np.ones(3, np.float32)}, [jax.ShapeDtypeStruct((1, 3), "f4")])
    with pytest.raises(UsageError, match="has 0 images among its inputs"):
        pocketune.build(rows, preprocess="0..1")
    with pytest.raises(UsageError, match=r"gpu.*takes no uint8"):
        pocketune.build(net(), preprocess="0..1", target="gpu")
    with pytest.raises(UsageError, match="may be NCHW or NHWC"):
        pocketune.build(
            pocketune.Model(
                lambda p, x: x * p["w"], {"w": np.ones(3, "f4")}, [jax.ShapeDtypeStruct((1, 3, 4, 3), "f4")]
            ),
            preprocess="0..1",
        )
