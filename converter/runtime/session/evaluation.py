"""Evaluation and inference in batches, over any number of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isfinite

import numpy as np

from converter.program.manifest import FEATURES, MASK, Manifest
from converter.runtime.data.examples import Examples, check_whole
from converter.runtime.data.lengths import of_fewest_tokens
from converter.runtime.interpreters.entry import SignatureEntry
from converter.support.errors import NumericError, UsageError


def figures(
    manifest: Manifest, ready: Callable[[str], SignatureEntry], examples: Examples, signature: str = "evaluate"
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Return the mean loss, and what else the program counts, by weight.

    And which places of an output count, where not all.

    Args:
        manifest: of the program.
        ready: gives a signature that sees the state.
        examples: checked rows.
        signature: that takes them: `evaluate`, or `evaluate_features`.

    Returns:
        The figures by name; the masks by output, [rows, ...], 1 or 0.

    Raises:
        UsageError: nothing has a weight.
        NumericError: the loss is not finite.
    """
    called, size = manifest.calls[signature], manifest.micro_batch
    counted = (*called.giving("correct"), *called.giving("figure"))
    masks = {
        spec.name.removeprefix(MASK): np.zeros((examples.rows, *spec.shape[1:]), np.float32)
        for spec in called.giving("mask")
    }
    check_whole(signature, called, examples.rows)
    total, sums = 0.0, {"loss": 0.0} | {spec.name: 0.0 for spec in counted}
    for start in range(0, examples.rows, size):
        part = examples.take(slice(start, start + size))
        if not part.weight:
            continue
        name, part = of_fewest_tokens(manifest, signature, part)
        entry = ready(name)
        part.fill(entry)
        entry.invoke()
        total += part.weight
        # The program's loss is a mean by weight, its other figures are sums.
        for figure in sums:
            sums[figure] += float(entry.output(figure)[0]) * (part.weight if figure == "loss" else 1)
        for output, mask in masks.items():
            mask[start : start + part.rows] = entry.output(MASK + output)[: part.rows]
    if not total:
        raise UsageError("weight: all rows have the weight 0, there is nothing to evaluate", page="sessions")
    if not isfinite(sums["loss"]):
        raise NumericError(f"the loss is {sums['loss']}: restore() a saved state or reset()")
    weight = examples.arrays["weight"]
    # Right answers are a share of the places that count in all rows.
    places = {
        "correct" if "correct" in sums else f"{output}_accuracy": weight @ mask.reshape(len(mask), -1).mean(1)
        for output, mask in masks.items()
    }
    means = {name: value / (places.get(name, total) or 1.0) for name, value in sums.items()}
    return {"accuracy" if name == "correct" else name: float(mean) for name, mean in means.items()}, masks


def kept_on_features(manifest: Manifest, features: SignatureEntry, examples: Examples) -> Examples:
    """Return checked rows of the model's inputs as a signature on features takes them."""
    inputs = {spec.name for spec in manifest.signatures[FEATURES].inputs}
    others = {name: array for name, array in examples.arrays.items() if name not in inputs}
    return Examples(every_output(features, examples) | others)


def outputs(entry: SignatureEntry, examples: Examples) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:
    """Yield which rows, and what the model gives for them, by output: not to be kept until the next.

    Args:
        entry: `infer`, `infer_features` or `features`, which sees the state.
        examples: checked rows; what the signature does not take is left out.

    Raises:
        UsageError: an output has not a row for each row, and these are not as many as the signature takes.
    """
    given, size = entry.signature.giving("output"), entry.signature.taking("input")[0].shape[0]
    if examples.rows != size and any(spec.shape[0] != size for spec in given):
        raise UsageError(
            f"an output of this model is not row by row: {entry.name} takes exactly {size} rows", page="sessions"
        )
    check_whole(entry.name, entry.signature, examples.rows)
    rows = Examples({spec.name: examples.arrays[spec.name] for spec in entry.signature.taking("input")})
    for start in range(0, rows.rows, size):
        batch = rows.take(slice(start, start + size))
        batch.fill(entry)
        entry.invoke()
        place = slice(start, start + batch.rows)
        # What is not row by row is all there, in the only call.
        yield place, {s.name: entry.output(s.name)[: batch.rows if s.shape[0] == size else None] for s in given}


def inferred(manifest: Manifest, ready: Callable[[str], SignatureEntry], examples: Examples) -> dict[str, np.ndarray]:
    """Return what the model gives for any number of rows, by output: as many tokens as these have; as `outputs`."""
    if manifest.by_length("infer"):
        name, rows = of_fewest_tokens(manifest, "infer", examples)
        tokens = next(iter(examples.arrays.values())).shape[1]
        return {output: given[:, :tokens] for output, given in every_output(ready(name), rows).items()}
    parts = calls(manifest, examples.rows)
    return joined([every_output(ready(name), examples.take(rows)) for name, rows in parts])


def calls(manifest: Manifest, rows: int) -> list[tuple[str, slice]]:
    """Return signatures that infer some rows, and which: the largest for whole calls, then what just holds the rest."""
    known = manifest.infers
    infer = manifest.calls["infer"]
    alone = infer.mixing is None and all(s.shape[0] == infer.inputs[0].shape[0] for s in infer.giving("output"))
    if rows in known or not alone:  # rows that influence each other are computed as many as they are, or refused
        return [(known.get(rows, "infer"), slice(0, rows))]
    most = max(known)
    whole = rows - rows % most
    rest = next((name for size, name in known.items() if size >= rows - whole), "")
    parts = [(known[most], slice(0, whole)), (rest, slice(whole, rows))]
    return [(name, part) for name, part in parts if part.stop > part.start]


def every_output(entry: SignatureEntry, examples: Examples) -> dict[str, np.ndarray]:
    """Return what the model gives for all rows, by output; as `outputs`."""
    specs = entry.signature.giving("output")
    size = entry.signature.taking("input")[0].shape[0]
    lengths = {spec.name: examples.rows if spec.shape[0] == size else spec.shape[0] for spec in specs}
    results = {spec.name: np.empty((lengths[spec.name], *spec.shape[1:]), spec.dtype) for spec in specs}
    for rows, given in outputs(entry, examples):
        for name, result in results.items():
            result[rows.start : rows.start + len(given[name])] = given[name]
    return results


def joined(results: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return what several calls gave, one after the other, by output."""
    if len(results) == 1:
        return results[0]
    return {name: np.concatenate([result[name] for result in results]) for name in results[0]}
