"""What the Android app and the page in the browser carry, and what their tests compare with.

The digits CNN of the demo as a training program with spare classes for symbols of the user's own, samples for replay,
and their description; the same bytes each time on the same machine. With SoCs, such as SM8650, the program's steps are
split, and it is there once more for the NPU of each.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

import converter
from converter.program.manifest import StateTensor
from converter.runtime.state.interchange import StateSpec
from converter.runtime.state.state_file import State, pack
from examples import EXAMPLES
from examples.data.digits import load
from scripts.app_assets.handwriting import Writer
from scripts.app_assets.hexagon import compile_ahead
from scripts.app_assets.strokes import Preprocessing, Stroke

DIGITS = tuple("0123456789")
CARD = {
    "license": "Apache-2.0",
    "datasets": "Optical Recognition of Handwritten Digits by E. Alpaydin and C. Kaynak, UCI Machine Learning "
    "Repository, CC BY 4.0, as scikit-learn has it",
}
SPARE = 6
#: Of the built-in samples, per digit.
REPLAY = 20
BATCH = 8
#: Of a logit nobody has trained: no answer before the user teaches it, and yet it learns within a few steps.
SILENT = -4.0
#: How the app trains. Chosen on six other writers (seeds 1 to 6), not on the one of the tests.
RECIPE = {"epochs": 15, "learning_rate": 2e-3, "replay": 0.5, "held_out_every": 4}

#: The user of the app's test; no figure in this repository was chosen on this handwriting.
PERSON = Writer(slant=0.42, turn=0.3, width=0.85, habits=True, unsteady=0.03, seed=77)
OF_EACH_DIGIT = 8
#: Whose drawings the page offers to those who have no pen at hand, and how many of each digit.
SOMEBODY = Writer(slant=-0.35, turn=-0.25, width=1.1, habits=True, unsteady=0.03, seed=40)
OFFERED = 4


def write(out: Path, socs: Sequence[str]) -> None:
    """All of it. Raises UsageError where Qualcomm's compiler does not do its part."""
    assets, fixtures, web = out / "assets", out / "fixtures", out / "web"
    for folder in (assets, fixtures, web):
        folder.mkdir(parents=True, exist_ok=True)
    preprocessing = Preprocessing()
    program = converter.build(
        with_spare_classes(EXAMPLES["digits-cnn"].build(), SPARE),
        optimizer="adam",
        update=converter.UpdateScheme("sparse", dict(EXAMPLES["digits-cnn"].sparse)),
        batch=BATCH,
        target="hexagon,tflite-2.16" if socs else "tflite-2.16",
        card=CARD,
    )
    program.write(assets / "digits.tflite")
    compiled = compiled_for(socs, assets)
    samples = built_in_samples()
    (assets / "digits.samples").write_bytes(samples)
    description = describe(program.data, samples, preprocessing)
    write_json(assets / "digits.json", description | ({"compiled": compiled} if compiled else {}))
    write_json(fixtures / "strokes.json", drawings(preprocessing))
    write_json(web / "hand.json", {"drawings": offered()})
    other = StateSpec(hashlib.sha256(b"another program").hexdigest(), (StateTensor("w", (3,), "float32", slot=False),))
    state = State(other, generation=1, tensors={"w": np.zeros(3, "f4")})
    (fixtures / "foreign.state").write_bytes(pack(state))


def compiled_for(socs: Sequence[str], assets: Path) -> dict[str, dict[str, str]]:
    """Return the program compiled for the NPUs of SoCs: by SoC how the app knows the file."""
    for old in assets.glob("digits-*.tflite"):
        old.unlink()
    found = {}
    for soc in socs:
        file = assets / f"digits-{soc}.tflite"
        compile_ahead(assets / "digits.tflite", soc, file)
        found[soc] = {"file": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    return found


def with_spare_classes(model: Any, spare: int) -> Any:
    """Return the same classifier with `spare` more logits, which stay silent until they are trained."""
    features, dense = model.layers[-2].output, model.layers[-1]
    kernel, bias = dense.get_weights()
    wider = keras.layers.Dense(dense.units + spare, name=dense.name)
    extended = keras.Model(model.input, wider(features), name=model.name)
    wider.set_weights([np.pad(kernel, ((0, 0), (0, spare))), np.pad(bias, (0, spare), constant_values=SILENT)])
    return extended


def built_in_samples() -> bytes:
    """Real digits that the model has not seen: for each its label, one byte, and its 64 pixels, a byte of 0 to 16."""
    x, y = load()[1]
    rows = np.concatenate([np.flatnonzero(y == digit)[:REPLAY] for digit in range(len(DIGITS))])
    pixels = np.rint(x[rows] * 16).astype(np.uint8).reshape(len(rows), -1)
    return np.concatenate([y[rows, None].astype(np.uint8), pixels], 1).tobytes()


def describe(program: bytes, samples: bytes, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return what the app must know besides the program's own manifest."""
    return {
        "format": "pocketune-app/1",
        "program": {"file": "digits.tflite", "sha256": hashlib.sha256(program).hexdigest()},
        "samples": {"file": "digits.samples", "sha256": hashlib.sha256(samples).hexdigest(), "levels": 16},
        "labels": list(DIGITS),
        "spare": SPARE,
        "preprocessing": preprocessing.to_json(),
        "recipe": RECIPE,
    }


def drawings(preprocessing: Preprocessing) -> dict[str, Any]:
    """Strokes and their images for the app's tests: odd ones, and one user's handwriting in the order of teaching."""
    odd: list[Sequence[Stroke]] = [
        [[(5.0, 5.0, 0)]],
        [[(0.0, 0.0, 0), (100.0, 0.0, 9)]],
        [[(3.0, 1.0, 0), (3.0, 1.0, 5), (3.0, 90.5, 12)]],
        [[(1e-3, 2e-3, 0), (2e-3, 1e-3, 4)], [(1.5e-3, 1.5e-3, 30)]],
        [[(-4000.0, 12.5, 0), (7000.25, 3333.3, 1), (0.1, 0.2, 2)]],
    ]
    labels = [digit for _ in range(OF_EACH_DIGIT) for digit in range(len(DIGITS))]
    return {
        "odd": [fixture(strokes, preprocessing) for strokes in odd],
        "person": [
            {"label": label, **fixture(strokes, preprocessing)}
            for label, strokes in zip(labels, PERSON.write(labels), strict=True)
        ],
    }


def offered() -> list[dict[str, Any]]:
    """Somebody's drawings, by digit, in a square of the side that the page's paper has."""
    labels = [digit for digit in range(len(DIGITS)) for _ in range(OFFERED)]
    written = SOMEBODY.write(labels, side=1000.0)
    return [{"label": label, "strokes": strokes} for label, strokes in zip(labels, written, strict=True)]


def fixture(strokes: Sequence[Stroke], preprocessing: Preprocessing) -> dict[str, Any]:
    """Return a drawing and its image, in row-major order."""
    return {"strokes": strokes, "image": preprocessing.image(strokes).ravel().tolist()}


def write_json(path: Path, data: Any) -> None:
    """Compact, one way of writing it."""
    path.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
