"""The bad manifests of programs whose frozen layers are in `features` alone."""

from __future__ import annotations

from tests.manifest.edits import Bad, copied, drop, put, renamed

EVALUATE = ("signatures", "evaluate_features")
SCORES = {"name": "output", "shape": [4, 3], "dtype": "float32", "role": "output"}
ROWS = {"name": "x", "shape": [4, 6], "dtype": "float32", "role": "input"}

ON_FEATURES = {
    "no-features-before-the-step": Bad("frozen-layers-once", drop("signatures", "features"), "train"),
    "no-step-on-features-either": Bad("frozen-layers-once", drop("signatures", "train_features"), "train"),
    "infer-on-features-of-nothing": Bad(
        "variables", renamed("signatures", "infer", "infer_features"), "infer_features"
    ),
    "evaluate-on-other-features": Bad(
        "frozen-layers-once", put(*EVALUATE, "inputs", 0, "shape", [4, 6]), "evaluate_features"
    ),
    "evaluate-on-features-with-other-targets": Bad(
        "frozen-layers-once", put(*EVALUATE, "inputs", 1, "dtype", "float32"), "evaluate_features"
    ),
    "evaluate-on-features-without-a-loss": Bad(
        "frozen-layers-once", put(*EVALUATE, "outputs", 0, "role", "figure"), "evaluate_features"
    ),
    "infer-on-features-gives-something-else": Bad(
        "frozen-layers-once",
        copied("signatures", "infer_features", "infer", outputs=[{**SCORES, "name": "other"}], inputs=[ROWS]),
        "infer_features",
    ),
    "features-of-rows-that-no-step-takes": Bad(
        "frozen-layers-once", put("signatures", "features", "inputs", 0, "shape", [3, 6]), "train_features"
    ),
    "length-of-a-step-on-features": Bad(
        "frozen-layers-once", copied("signatures", "train_features", "train_length_2"), "train_length_2"
    ),
}
