"""The app's training of a user's handwriting, as the app's own test recorded it, equals the Python runtime's."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import numpy as np
import pytest

from converter.runtime import TrainingSession

TARGET = Path(__file__).resolve().parents[2] / "android_app" / "app" / "target"
HELD_OUT_EVERY, FIRST_HELD_OUT = 4, 2

pytestmark = pytest.mark.android


def test_the_app_trains_as_python_does() -> None:
    record = TARGET / "recorded" / "train.bin"
    assert record.exists(), "run android_app/app/test first: its tests of the app record what they train on"
    person = json.loads((TARGET / "fixtures" / "strokes.json").read_text())["person"]
    x = np.array([drawing["image"] for drawing in person], np.float32).reshape(-1, 8, 8, 1)
    y = np.array([drawing["label"] for drawing in person], np.int32)
    place = np.array([np.count_nonzero(y[:i] == label) for i, label in enumerate(y)])
    held_out = place % HELD_OUT_EVERY == FIRST_HELD_OUT

    with TrainingSession(TARGET / "assets" / "digits.tflite") as session:
        specs = session.manifest.signatures["train"].inputs
        fields = [(spec.name, f"<{np.dtype(spec.dtype).str[1:]}", spec.shape) for spec in specs]
        steps = np.fromfile(record, np.dtype([*fields, ("loss", "<f4")]))
        assert len(steps) > 100
        assert sum(prod(spec.shape) for spec in specs) * 4 + 4 == steps.itemsize

        before = session.evaluate(x[held_out], y[held_out])["accuracy"]
        losses = [session.train(s["x"], s["y"], float(s["learning_rate"][0]), s["weight"]) for s in steps]
        after = session.evaluate(x[held_out], y[held_out])["accuracy"]

    np.testing.assert_allclose(losses, steps["loss"], rtol=1e-5, atol=1e-5)
    app_before, app_after = map(float, (TARGET / "recorded" / "result.txt").read_text().split())
    assert (app_before, app_after) == pytest.approx((before, after))
    assert app_after - app_before >= 0.15

    # All of the user's drawings were learned from but those kept aside. Touches are rounded: a cell may differ.
    learned = steps["x"].reshape(-1, 64)
    nearest = np.array([np.abs(learned - image).sum(1).min() for image in x.reshape(-1, 64)])
    assert nearest[~held_out].max() < 1 < nearest[held_out].min()
