"""The bad manifests: what is changed in a good one, and the place that every refusal names."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.manifest.changes_on_features import ON_FEATURES
from tests.manifest.edits import Bad, Json, again, all_of, drop, put, renamed, text

TRAIN, INFER = ("signatures", "train"), ("signatures", "infer")
SHORT = ("signatures", "train_length_2")
REDRAWN = ("parameters", 1)
PIECE = ("parameters", 1, "pieces", 0)
HEAD = {"kernel": "head/w", "bias": "head/b", "axis": 1, "own": 3, "names": None, "takes_features": False}
X, Y, WEIGHT, RATE = (("signatures", "train", "inputs", i) for i in range(4))
CERTIFICATE = {
    "on": "gpu",
    "engine": "LiteRT GPU delegate",
    "version": "2.1",
    "driver": "Mesa",
    "date": "2026-11-22T19:34:58Z",
    "steps": 10,
    "ok": True,
    "whole": True,
    "precision": "float32",
    "loss_error": 1e-7,
    "update_error": 2e-7,
    "output_error": None,
    "floor": None,
    "failures": [],
}
ROW_LOSSES = {"name": "row_losses", "shape": [4], "dtype": "float32", "role": "row_losses"}
FAILURE = {"layer": "a", "operator": "PAD", "what": "refused", "advice": ""}


def certified(**other: Any) -> Callable[[Json], Json]:
    """A certificate with other fields."""
    return put("certificates", [{**CERTIFICATE, **other}])


_FORMS = {
    "no-object": Bad("variables", lambda manifest: b"[]", "manifest"),
    "no-json": Bad("variables", text('"format"', "'format'"), "manifest"),
    "cut": Bad("variables", lambda manifest: json.dumps(manifest).encode()[:-9], "manifest"),
    "more-behind-it": Bad("variables", lambda manifest: json.dumps(manifest).encode() + b"{}", "manifest"),
    "byte-order-mark": Bad("variables", lambda manifest: b"\xef\xbb\xbf" + json.dumps(manifest).encode(), "manifest"),
    "utf-16": Bad("variables", lambda manifest: json.dumps(manifest).encode("utf-16"), "manifest"),
    "latin-1": Bad("prepared", lambda m: json.dumps(m, ensure_ascii=False).encode("latin-1"), "manifest"),
    "comma-behind-the-last": Bad("variables", text("[]}", "[],}"), "manifest"),
    "comment": Bad("variables", text('"format"', '/* new */ "format"'), "manifest"),
    "control-character": Bad("variables", text("everything trains", "everything\ntrains"), "manifest"),
    "unknown-escape": Bad("variables", text("everything trains", "everything\\qtrains"), "manifest"),
    "word-without-quotes": Bad("prepared", text('"mean": 0.5', '"mean": half'), "manifest"),
    "not-a-number": Bad("prepared", text('"mean": 0.5', '"mean": NaN'), "manifest"),
    "infinity": Bad("prepared", text('"mean": 0.5', '"mean": 1e999'), "manifest"),
    "number-beyond-all": Bad("prepared", text('"mean": 0.5', f'"mean": {"9" * 400}'), "manifest"),
    "leading-zero": Bad("variables", text('"batch": 4', '"batch": 04'), "manifest"),
    "leading-plus": Bad("variables", text('"batch": 4', '"batch": +4'), "manifest"),
    "nothing-behind-the-point": Bad("variables", text('"loss_scale": 1.0', '"loss_scale": 1.'), "manifest"),
    "nested-too-deeply": Bad("prepared", put("preprocessing", {"a": json.loads("[" * 70 + "]" * 70)}), "manifest"),
}

_FIELDS = {
    "format-of-a-newer-version": Bad("variables", put("format", "pocketune/2"), "pocketune/2"),
    "no-format": Bad("variables", drop("format"), "format"),
    "unknown-field": Bad("variables", put("more", 1), "more"),
    "unknown-field-of-a-tensor": Bad("variables", put(*X, "unit", "cm"), "unit"),
    "no-batch": Bad("variables", drop("batch"), "batch"),
    "no-costs": Bad("variables", drop("costs"), "costs"),
    "no-dtype": Bad("variables", drop(*X, "dtype"), "dtype"),
    "no-frozen-part": Bad("variables", drop("parameters", 0, "frozen"), "frozen"),
    "name-is-null": Bad("variables", put("name", None), "name"),
    "name-is-a-number": Bad("variables", put("name", 3), "name"),
    "batch-in-quotes": Bad("variables", put("batch", "4"), "batch"),
    "batch-is-true": Bad("variables", all_of(put("batch", True), put("micro_batch", True)), "batch"),
    "batch-and-a-half": Bad("variables", put("batch", 4.5), "batch"),
    "batch-of-none": Bad("variables", all_of(put("batch", 0), put("micro_batch", 0)), "batch"),
    "batch-below-zero": Bad("variables", put("batch", -4), "batch"),
    "batch-beyond-32-bits": Bad("micro-batches", put("batch", 1 << 32), "batch"),
    "graph-hash-in-capitals": Bad("variables", lambda m: m.update(graph_hash="A" * 64), "graph_hash"),
    "graph-hash-too-short": Bad("variables", put("graph_hash", "ab" * 31), "graph_hash"),
    "graph-hash-and-a-line": Bad("variables", put("graph_hash", "ab" * 32 + "\n"), "graph_hash"),
    "unknown-state": Bad("variables", put("state", "shared"), "state"),
    "unknown-role": Bad("variables", put(*X, "role", "label"), "role"),
    "unknown-dtype": Bad("variables", put(*X, "dtype", "float16"), "dtype"),
    "frozen-in-float8": Bad("variables", put("frozen", "float8"), "frozen"),
    "slot-is-a-word": Bad("variables", put("state_tensors", 0, "slot", "false"), "slot"),
    "cost-is-a-word": Bad("variables", put("costs", "step_cost", "1"), "step_cost"),
    "labels-are-numbers": Bad("prepared", put("labels", [1, 2, 3]), "string"),
    "labelled-at-a-place-below-zero": Bad("prepared", put("labelled", 0, "place", -1), "labelled"),
    "labelled-at-a-place-of-no-model": Bad("prepared", put("labelled", 0, "place", 4096), "labelled"),
    "labelled-output-twice": Bad("prepared", again("labelled", place=1), "labelled"),
    "labelled-without-an-output": Bad("prepared", drop("labelled", 0, "output"), "output"),
    "card-is-a-text": Bad("prepared", put("card", "Apache-2.0"), "card"),
    "card-of-numbers": Bad("prepared", put("card", "license", 2), "license"),
    "preprocessing-is-a-list": Bad("prepared", put("preprocessing", []), "preprocessing"),
    "shape-is-a-number": Bad("variables", put(*X, "shape", 4), "shape"),
    "loss-is-a-number": Bad("variables", put("loss", 1), "loss"),
    "loss-of-nothing": Bad("no-target", put("loss", {}), "loss"),
    "loss-of-an-output-is-null": Bad("two-losses", put("loss", "kind", None), "loss"),
    "learning-rate-below-zero": Bad("variables", put("learning_rate", -0.1), "learning_rate"),
    "no-learning-rate": Bad("variables", put("learning_rate", None), "learning_rate"),
    "two-learning-rates": Bad("rate-in-the-program", put("learning_rate", 0.1), "learning_rate"),
    "zero-from-below-zero": Bad("rate-in-the-program", put("running_rate", "zero_from", -1), "zero_from"),
    "zero-from-beyond-32-bits": Bad("rate-in-the-program", put("running_rate", "zero_from", 1 << 31), "zero_from"),
    "counter-that-there-is-not": Bad("rate-in-the-program", put("running_rate", "counter", "step"), "counter"),
    "counter-of-many-numbers": Bad("rate-in-the-program", put("running_rate", "counter", "first/b"), "counter"),
    "identity-version-in-quotes": Bad("variables", put("identity", "version", "1"), "version"),
    "identity-digest-too-short": Bad("variables", put("identity", "forward", "ab12"), "identity"),
    "identity-int8-too-short": Bad("features-in-integers", put("identity", "int8", "ab12"), "identity"),
    "frozen-digest-in-capitals": Bad("features", put("identity", "frozen", 0, "digest", "A" * 16), "identity"),
    "frozen-shape-below-zero": Bad("features", put("identity", "frozen", 0, "shape", [-6, -5]), "identity"),
}

_TENSORS = {
    "state-tensor-twice": Bad("variables", again("state_tensors"), "state_tensors"),
    "state-tensor-of-rank-0": Bad("variables", put("state_tensors", 0, "shape", []), "state_tensors"),
    "state-tensor-of-no-number": Bad("variables", put("state_tensors", 0, "shape", [0]), "state_tensors"),
    "state-tensor-in-int8": Bad("features-in-integers", put("state_tensors", 0, "dtype", "int8"), "state_tensors"),
    "state-tensor-of-2-gib": Bad("variables", again("state_tensors", tensor="x", shape=[1 << 29], model=None), "shape"),
    "state-tensor-larger-than-64-bits": Bad("variables", put("state_tensors", 1, "shape", [1 << 30] * 5), "shape"),
    "model-tensor-of-another-size": Bad("variables", put("state_tensors", 1, "model", "shape", [6, 6]), "view"),
    "model-tensor-below-zero": Bad("variables", put("state_tensors", 1, "model", "shape", [-6, -5]), "shape"),
    "model-tensor-of-2-gib": Bad(
        "variables",
        all_of(
            put("state_tensors", 0, "model", "shape", [1 << 16, 1 << 16]),
            put("state_tensors", 0, "model", "view", [["slice", 0, 0, 5], ["slice", 1, 0, 1]]),
        ),
        "shape",
    ),
    "parameter-twice": Bad("variables", again("parameters"), "parameters"),
    "parameter-in-int8": Bad("variables", put("parameters", 0, "dtype", "int8"), "parameters"),
    "parameter-of-no-pieces": Bad("variables", put("parameters", 0, "pieces", []), "pieces"),
    "parameter-of-no-number": Bad("variables", put("parameters", 1, "shape", [6, 0]), "parameters"),
    "piece-that-there-is-not": Bad("variables", put("parameters", 0, "pieces", 0, "tensor", "x"), "parameters"),
    "view-of-no-step": Bad("variables", put("parameters", 1, "pieces", 0, "view", [["spin"]]), "view"),
    "view-step-is-a-word": Bad("variables", put("parameters", 1, "pieces", 0, "view", ["transpose"]), "view"),
    "view-that-turns-an-axis-twice": Bad(
        "variables", put("parameters", 1, "pieces", 0, "view", [["transpose", [0, 0]]]), "view"
    ),
    "view-that-turns-half-an-axis": Bad(
        "variables", put("parameters", 1, "pieces", 0, "view", [["transpose", [0.5, 1]]]), "view"
    ),
    "view-into-another-size": Bad("variables", put("parameters", 1, "pieces", 0, "view", [["reshape", [29]]]), "view"),
    "view-into-sizes-below-zero": Bad(
        "variables", put("parameters", 1, "pieces", 0, "view", [["reshape", [-5, -6]]]), "view"
    ),
    "view-beyond-the-end": Bad("variables", put("parameters", 1, "pieces", 0, "view", [["slice", 0, 0, 7]]), "view"),
    "view-of-nothing": Bad("variables", put("parameters", 1, "pieces", 0, "view", [["slice", 0, 3, 3]]), "view"),
    "view-of-no-axis": Bad("variables", put("parameters", 1, "pieces", 0, "view", [["slice", 2, 0, 1]]), "view"),
    "view-from-false": Bad("variables", put("parameters", 1, "pieces", 0, "view", [["slice", 0, False, 6]]), "view"),
    "view-that-leaves-numbers-out": Bad(
        "variables", put("parameters", 1, "pieces", 0, "view", [["slice", 0, 0, 5]]), "view"
    ),
    "frozen-part-elsewhere": Bad("part-of-a-weight", put("parameters", 2, "frozen", "entry", "other/x"), "frozen"),
    "frozen-part-of-another-size": Bad("part-of-a-weight", put("parameters", 2, "frozen", "shape", [2]), "view"),
    "frozen-part-of-no-number": Bad("part-of-a-weight", put("parameters", 2, "frozen", "shape", [0]), "frozen"),
    "head-of-no-kernel": Bad("later-classes", put("head", "kernel", "x"), "head"),
    "head-of-another-bias": Bad("later-classes", put("head", "axis", 0), "head"),
    "head-along-no-axis": Bad("later-classes", put("head", "axis", 2), "head"),
    "head-of-too-many-classes": Bad("later-classes", put("head", "own", 7), "head"),
    "head-whose-names-are-numbers": Bad("later-classes", put("head", "names", "head/w"), "head"),
    "head-of-names-that-are-not-kept": Bad("later-classes", put("head", "names", "x"), "head"),
    "head-behind-no-features": Bad(
        "variables",
        put("head", {"kernel": "head/w", "bias": "head/b", "axis": 1, "own": 3, "takes_features": True}),
        "head",
    ),
    "choice-twice": Bad("chosen-channels", again("choices"), "choices"),
    "choice-by-the-same-list": Bad("chosen-channels", again("choices", weight="head/w"), "choices"),
    "choice-of-no-list": Bad("chosen-channels", put("choices", 0, "indices", "x"), "choices"),
    "choice-by-numbers-that-train": Bad("chosen-channels", put("choices", 0, "indices", "first/b"), "choices"),
    "choice-of-too-few-channels": Bad("chosen-channels", put("choices", 0, "channels", 2), "choices"),
    "choice-of-no-change": Bad("chosen-channels", put("choices", 0, "change", "x"), "choices"),
    "redrawn-weight-that-is-not-kept": Bad("redrawn-channels", put("choices", 0, "weight", "x"), "gradients"),
    "redrawn-weight-of-whole-numbers": Bad("redrawn-channels", put(*REDRAWN, "dtype", "int32"), "choices"),
    "redrawn-weight-in-two-tensors": Bad(
        "redrawn-channels", put(*REDRAWN, "pieces", [{"tensor": "first/w", "view": []}] * 2), "choices"
    ),
    "redrawn-by-no-view": Bad("redrawn-channels", put("choices", 0, "product", [["transpose", [0, 0]]]), "product"),
    "redrawn-along-its-outputs": Bad(
        "redrawn-channels", put("choices", 0, "product", [["transpose", [1, 0]]]), "product"
    ),
    "redrawn-in-part": Bad("redrawn-channels", put("choices", 0, "product", [["slice", 0, 0, 3]]), "product"),
    "scales-that-there-are-not": Bad("state-in-int8", put(*PIECE, "scales", "tensor", "x"), "'x' is no scales"),
    "scales-of-another-axis": Bad("state-in-int8", put(*PIECE, "scales", "axis", 0), "is no scales of 'first/w'"),
    "scales-of-no-axis": Bad("state-in-int8", put(*PIECE, "scales", "axis", 2), "is no scales of 'first/w'"),
    "scales-in-int8": Bad("state-in-int8", put(*PIECE, "scales", "tensor", "first/w"), "is no scales of 'first/w'"),
    "integers-without-scales": Bad("state-in-int8", put(*PIECE, "scales", None), "has scales of its own"),
    "numbers-with-scales": Bad(
        "variables",
        put("parameters", 1, "pieces", 0, "scales", {"tensor": "first/b", "axis": 1}),
        "has scales of its own",
    ),
    "weight-of-integers": Bad("state-in-int8", put("parameters", 1, "dtype", "int8"), "stands for float32 numbers"),
    "head-in-int8": Bad("state-in-int8", put("head", HEAD), "a session sets float32 numbers"),
}

_SIGNATURES = {
    "no-train": Bad("variables", drop(*TRAIN), "train"),
    "no-save": Bad("variables", drop("signatures", "save"), "save"),
    "no-restore": Bad("variables", drop("signatures", "restore"), "restore"),
    "no-initialize": Bad("variables", drop("signatures", "initialize"), "initialize"),
    "no-apply": Bad("micro-batches", drop("signatures", "apply"), "apply"),
    "no-step-on-features": Bad("features", drop("signatures", "train_features"), "train_features"),
    "step-on-features-alone": Bad("features", drop("signatures", "features"), "train_features"),
    "save-where-nothing-is-kept": Bad("stateless", put("signatures", "save", {}), "inputs"),
    "unknown-signature": Bad("variables", renamed("signatures", "evaluate", "judge"), "judge"),
    "infer-1-without-infer": Bad("other-numbers-of-rows", drop(*INFER), "infer_1"),
    "infer-01": Bad("other-numbers-of-rows", renamed("signatures", "infer_1", "infer_01"), "infer_01"),
    "infer-2-of-1-row": Bad("other-numbers-of-rows", renamed("signatures", "infer_1", "infer_2"), "infer_2"),
    "infer-1-gives-something-else": Bad(
        "other-numbers-of-rows", put("signatures", "infer_1", "outputs", 0, "name", "other"), "infer_1"
    ),
    "length-02": Bad("several-lengths", renamed("signatures", "infer_length_2", "infer_length_02"), "infer_length_02"),
    "length-of-apply": Bad(
        "several-lengths", renamed("signatures", "infer_length_2", "save_length_2"), "save_length_2"
    ),
    "length-3-of-2": Bad("several-lengths", put(*SHORT, "inputs", 0, "shape", [1, 3]), "train_length_2"),
    "length-without-evaluate": Bad("several-lengths", drop("signatures", "evaluate_length_2"), "evaluate_length_2"),
    "length-of-other-targets": Bad("several-lengths", put(*SHORT, "inputs", 1, "shape", [1, 4]), "train_length_2"),
    "length-gives-something-else": Bad(
        "several-lengths", put("signatures", "infer_length_2", "outputs", 0, "name", "other"), "infer_length_2"
    ),
    "length-that-is-the-longest": Bad(
        "several-lengths", renamed("signatures", "infer_length_2", "infer_length_4"), "infer_length_2"
    ),
    "decode-gives-nothing": Bad("generates", put("signatures", "decode", "outputs", []), "decode"),
    "no-inputs": Bad("variables", put(*INFER, "inputs", []), "infer"),
    "no-outputs": Bad("variables", put(*TRAIN, "outputs", []), "train"),
    "input-twice": Bad("variables", again(*TRAIN, "inputs"), "train"),
    "mixing-is-a-number": Bad("rows-that-mix", put(*TRAIN, "mixing", 1), "mixing"),
    "micro-batch-that-does-not-divide": Bad("variables", put("micro_batch", 3), "micro_batch"),
    "micro-batch-of-none": Bad("variables", put("micro_batch", 0), "micro_batch"),
    "micro-batch-larger-than-the-batch": Bad("variables", put("micro_batch", 8), "micro_batch"),
    "micro-batch-of-another-size": Bad("micro-batches", put("micro_batch", 1), "accumulate"),
    "batch-of-several-calls": Bad("variables", put("batch", 8), "accumulate"),
    "output-among-inputs": Bad("variables", put(*X, "role", "output"), "train.x"),
    "input-among-outputs": Bad("variables", put(*INFER, "outputs", 0, "role", "input"), "infer.output"),
    "no-weight": Bad("variables", drop(*WEIGHT), "train"),
    "no-loss": Bad("variables", put(*TRAIN, "outputs", 0, "role", "figure"), "train"),
    "rate-where-apply-takes-it": Bad("micro-batches", drop("signatures", "apply", "inputs", 0), "apply"),
    "weight-by-another-name": Bad("variables", put(*WEIGHT, "name", "w"), "train.w"),
    "weight-in-int32": Bad("variables", put(*WEIGHT, "dtype", "int32"), "train.weight"),
    "weight-of-two-axes": Bad("variables", put(*WEIGHT, "shape", [4, 1]), "train.weight"),
    "weight-of-another-batch": Bad("variables", put(*WEIGHT, "shape", [5]), "train.weight"),
    "rate-of-two-numbers": Bad("variables", put(*RATE, "shape", [2]), "train.learning_rate"),
    "figure-of-two-numbers": Bad("two-losses", put("signatures", "evaluate", "outputs", 1, "shape", [2]), "evaluate"),
    "mask-in-int32": Bad("variables", again(*INFER, "outputs", name="mask/output", role="mask", dtype="int32"), "mask"),
    "mask-by-another-name": Bad("variables", again(*INFER, "outputs", name="hides", role="mask"), "hides"),
    "infer-takes-something-else": Bad("variables", put(*INFER, "inputs", 0, "name", "z"), "infer"),
    "evaluate-takes-another-size": Bad(
        "variables", put("signatures", "evaluate", "inputs", 0, "shape", [4, 7]), "evaluate"
    ),
    "evaluate-takes-another-batch": Bad(
        "variables", put("signatures", "evaluate", "inputs", 0, "shape", [5, 6]), "evaluate"
    ),
    "evaluate-takes-other-targets": Bad(
        "variables", put("signatures", "evaluate", "inputs", 1, "dtype", "float32"), "evaluate"
    ),
    "infer-takes-two-numbers-of-rows": Bad("no-target", put(*INFER, "inputs", 0, "shape", [5, 6]), "infer"),
    "features-of-another-size": Bad(
        "features", put("signatures", "features", "outputs", 0, "shape", [4, 6]), "features"
    ),
    "features-in-float32": Bad(
        "features-in-integers", put("signatures", "features", "outputs", 0, "dtype", "float32"), "features"
    ),
    "step-on-features-with-other-targets": Bad(
        "features", put("signatures", "train_features", "inputs", 1, "name", "z"), "train_features"
    ),
    "state-of-another-shape": Bad("variables", put("signatures", "save", "outputs", 0, "shape", [6]), "save"),
    "state-that-there-is-not": Bad("variables", put("signatures", "save", "outputs", 0, "name", "x"), "save"),
    "save-gives-a-part": Bad("variables", drop("signatures", "save", "outputs", 0), "save"),
    "restore-takes-a-part": Bad("variables", drop("signatures", "restore", "inputs", 0), "restore"),
    "step-takes-a-part-of-the-state": Bad("stateless", drop(*TRAIN, "inputs", 8), "train"),
    "gradient-that-there-is-not": Bad("split", drop("signatures", "apply", "inputs", 5), "apply"),
    "gradient-of-nothing": Bad(
        "split", put("signatures", "gradients", "outputs", 1, "name", "gradient/x"), "gradients"
    ),
    "gradient-where-none-is-passed": Bad(
        "variables", again("signatures", "save", "outputs", name="gradient/first/b", role="gradient"), "save"
    ),
    "accumulator-that-is-not-passed": Bad(
        "micro-batches-stateless", drop("signatures", "accumulate", "inputs", 7), "accumulate"
    ),
    "accumulator-of-nothing": Bad(
        "micro-batches-stateless", put("signatures", "accumulate", "outputs", 1, "role", "output"), "accumulate"
    ),
    "accumulator-that-stays": Bad(
        "micro-batches",
        again("signatures", "apply", "inputs", name="gradient/head/b", role="gradient", shape=[3]),
        "apply",
    ),
    "split-said-to-be-stateless": Bad("split", all_of(put("state", "stateless"), put("loss_scale", 1)), "train"),
    "split-said-to-keep-its-state": Bad("split", all_of(put("state", "variables"), put("loss_scale", 1)), "train"),
    "both-halves-change-a-tensor": Bad("split", again("signatures", "gradients", "outputs", name="x"), "gradients"),
    "nothing-updates-a-weight": Bad("split", drop("signatures", "apply", "outputs", 0), "apply"),
    "loss-scale-of-3": Bad("split", put("loss_scale", 3.0), "loss_scale"),
    "loss-scale-of-0": Bad("split", put("loss_scale", 0.0), "loss_scale"),
    "loss-scale-that-leaves-float32": Bad("split", put("loss_scale", 2.0**-200), "loss_scale"),
    "loss-scale-of-one-call": Bad("stateless", put("loss_scale", 2.0), "loss_scale"),
    "fisher-of-another-weight": Bad("chosen-channels", put("choices", 0, "weight", "head/w"), "fisher"),
    "fisher-of-too-many-channels": Bad("chosen-channels", put("choices", 0, "channels", 7), "fisher"),
    "fisher-of-nothing": Bad("chosen-channels", put("choices", []), "fisher"),
    "target-by-another-name": Bad("trains-only", put(*Y, "name", "z"), "targets"),
    "loss-of-an-output-without-target": Bad("two-losses", put("loss", "more", "mse"), "loss"),
    "row-losses-of-other-rows": Bad("variables", put(*TRAIN, "outputs", 1, {**ROW_LOSSES, "shape": [5]}), "row_losses"),
    "row-losses-by-another-name": Bad(
        "variables", put(*TRAIN, "outputs", 1, {**ROW_LOSSES, "name": "l"}), "row_losses"
    ),
    "row-losses-of-places": Bad("variables", put(*TRAIN, "outputs", 1, {**ROW_LOSSES, "shape": [4, 1]}), "row_losses"),
    "row-losses-are-fed": Bad("variables", again(*TRAIN, "inputs", **ROW_LOSSES), "row_losses"),
    "loss-of-another-output": Bad("two-losses", renamed("loss", "kind", "king"), "loss"),
    "labels-of-another-target": Bad("variables", renamed("target_labels", "y", "z"), "target_labels"),
    "labels-without-a-count": Bad("variables", put("target_labels", "y", "count", None), "target_labels"),
    "labels-with-a-bound": Bad("variables", put("target_labels", "y", "most", 1), "target_labels"),
    "labels-of-few-numbers": Bad("variables", put("target_labels", "y", "only", [0, 1]), "target_labels"),
    "numbers-below-zero-left-out": Bad("probabilities", put("target_labels", "y", "masked", True), "target_labels"),
    "number-left-out": Bad("probabilities", put("target_labels", "y", "ignored", 3), "target_labels"),
    "numbers-between-turned-bounds": Bad("probabilities", put("target_labels", "y", "least", 2), "target_labels"),
    "few-numbers-are-words": Bad("signs", put("target_labels", "y", "only", ["-1", "1"]), "only"),
    "labels-of-numbers": Bad("signs", put("target_labels", {"y": {"count": 2}}), "target_labels"),
    "no-label": Bad("variables", put("target_labels", "y", "count", 0), "target_labels"),
    "labels-beyond-32-bits": Bad("variables", put("target_labels", "y", "count", 1 << 31), "count"),
    "ignored-label-beyond-32-bits": Bad("masked-labels", put("target_labels", "y", "ignored", -(1 << 31)), "labels"),
}

_CERTIFICATES = {
    "certificate-of-nothing-known": Bad("variables", certified(on="npu"), "certificates"),
    "certificate-twice": Bad("variables", put("certificates", [CERTIFICATE, CERTIFICATE]), "certificates"),
    "certificate-of-no-date": Bad("variables", certified(date="2026-11-22"), "certificates"),
    "certificate-in-other-digits": Bad("variables", certified(date="٢٠٢٦-11-22T19:34:58Z"), "certificates"),
    "certificate-of-no-step": Bad("variables", certified(steps=0), "certificates"),
    "certificate-of-an-error-below-zero": Bad("variables", certified(floor=-1e-9), "certificates"),
    "certificate-of-a-part": Bad("variables", certified(whole=False), "certificates"),
    "certificate-of-no-update": Bad("variables", certified(update_error=None), "certificates"),
    "certificate-in-spite-of-a-failure": Bad("variables", certified(failures=[FAILURE]), "certificates"),
    "certificate-of-many-failures": Bad("variables", certified(ok=False, failures=[FAILURE] * 21), "certificates"),
    "failure-without-words": Bad("variables", certified(ok=False, failures=[{"layer": "a"}]), "operator"),
}

#: By the name of the vector.
BAD = {**_FORMS, **_FIELDS, **_TENSORS, **_SIGNATURES, **ON_FEATURES, **_CERTIFICATES}

#: Good ones that are no program's as it was built: what is changed in one, by the name of the vector.
GOOD = {
    "row-losses": Bad("variables", put(*TRAIN, "outputs", 1, ROW_LOSSES), ""),
    "certified": Bad("variables", certified(), ""),
    "certified-for-a-processor": Bad("variables", certified(on="hexagon:SM8650"), ""),
    "certified-by-another-engine": Bad("variables", certified(on="vendor-npu:X1"), ""),
    "refused-by-an-engine": Bad(
        "variables", certified(ok=False, update_error=None, failures=[{**FAILURE, "layer": ""}] * 20), ""
    ),
    "fields-left-out": Bad(
        "variables",
        all_of(*map(drop, ("labels", "preprocessing", "card", "frozen", "running_rate", "choices", "loss_scale"))),
        "",
    ),
    "of-an-older-version": Bad(
        "variables",
        all_of(drop("identity"), drop("certificates"), *(drop("state_tensors", i, "model") for i in range(4))),
        "",
    ),
    "labels-of-an-older-version": Bad("variables", put("target_labels", "y", {"count": 3}), ""),
    "numbers-of-an-older-version": Bad("signs", put("target_labels", {}), ""),
    "whole-numbers-with-a-point": Bad("variables", text('"batch": 4', '"batch": 4.0'), ""),
    "whole-numbers-with-an-exponent": Bad("variables", text('"shape": [4, 6]', '"shape": [4e0, 0.6E+1]'), ""),
    "whole-numbers-below-zero": Bad("rate-in-the-program", text('"zero_from": 9', '"zero_from": -0'), ""),
    "view-with-a-point": Bad("variables", text('"view": []', '"view": [["slice", 0, 0.0, 5]]'), ""),
    "view-of-many-steps": Bad(
        "variables",
        put(
            *("parameters", 1, "pieces", 0, "view"),
            [["transpose", [1, 0]], ["reshape", [2, 15]], ["reshape", [5, 6]], ["slice", 1, 0, 6]],
        ),
        "",
    ),
    "escaped": Bad("variables", text('"name": "_net"', '"n\\u0061me": "\\ud83d\\ude00\\/\\t"'), ""),
    "field-twice": Bad("variables", text('"batch": 4', '"batch": 9, "batch": 4'), ""),
    "names-of-objects": Bad("variables", put("costs", "__proto__", 1.0), ""),
    "laid-out": Bad("variables", lambda m: json.dumps(m, indent=2).replace("\n", "\r\n\t").encode(), ""),
    "many-values": Bad("variables", put("preprocessing", {"a": [0] * 1000}), ""),
    "largest-scale": Bad("split", put("loss_scale", 2.0**24), ""),
}
