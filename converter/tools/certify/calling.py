"""Stateless calls of signatures: the state goes in and out, wherever the program keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from converter.program.manifest import Manifest, TensorSpec, at_length

Arrays = dict[str, np.ndarray]
#: A signature and what it is given.
Invocation = tuple[str, Arrays]


def is_step(manifest: Manifest, name: str) -> bool:
    """Return whether a signature takes the rows of a step, of however many tokens."""
    return at_length(name)[0] == manifest.stored_step


def takes(manifest: Manifest, name: str) -> tuple[TensorSpec, ...]:
    """Return what goes into a call of a signature."""
    signature = manifest.signatures[name]
    if manifest.state != "variables":
        return signature.inputs
    adds = is_step(manifest, name) and manifest.step != manifest.updating
    update = manifest.signatures[manifest.updating].inputs if adds else ()
    return (*signature.inputs, *update, *manifest.signatures["restore"].inputs)


def gives(manifest: Manifest, name: str) -> tuple[TensorSpec, ...]:
    """Return what comes out of it."""
    signature = manifest.signatures[name]
    if manifest.state != "variables" or not is_step(manifest, name):
        return signature.outputs
    return (*signature.outputs, *manifest.signatures["save"].outputs)


def invocations(manifest: Manifest, name: str, feed: Mapping[str, np.ndarray]) -> list[Invocation]:
    """Return what is run, in order, for a call; of a step by micro-batches all of it, each with the same rows."""
    if manifest.state != "variables":
        return [(name, dict(feed))]
    names = ["restore", name]
    if is_step(manifest, name):
        if manifest.step != manifest.updating:
            names = ["restore", *[name] * (manifest.batch // manifest.micro_batch), manifest.updating]
        names.append("save")
    tick = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in manifest.signatures["save"].inputs}
    given = tick | dict(feed)
    return [
        (run, {spec.name: _passed(given[spec.name], spec) for spec in manifest.signatures[run].inputs}) for run in names
    ]


def together(manifest: Manifest, name: str, results: Sequence[Mapping[str, np.ndarray]]) -> Arrays:
    """Return what a call gives, of what its invocations gave."""
    wanted = [spec.name for spec in gives(manifest, name)]
    joined = {key: array for result in results for key, array in result.items()}
    integers = {tensor.tensor for tensor in manifest.state_tensors if tensor.dtype == "int8"}
    return {key: joined[key].view(np.int8) if key in integers else joined[key] for key in wanted if key in joined}


def _passed(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Return an array as a signature takes it: the bits of state in int8 are passed as uint8."""
    return array.view(np.uint8) if spec.role == "state" and spec.dtype == "uint8" else array
