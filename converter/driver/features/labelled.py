"""Outputs whose classes have labels, and what of their last layers a state holds."""

from __future__ import annotations

from dataclasses import replace

from converter.driver.compilation import Compilation
from converter.driver.requests import classes_of
from converter.frontends.class_room import room_of
from converter.passes import absorb_layout
from converter.program.manifest import LabelledOutput
from converter.training.schemes.structure import last_parameters


def find(c: Compilation) -> Compilation:
    """Say which outputs the labels are of. With room for classes the state itself names them."""
    labels, outputs = c.options.labels, c.source.graph.outputs
    if labels is None or room_of(c.options.classes) is not None:
        return c
    model = absorb_layout(c.graphs.model)
    labelled = tuple(
        LabelledOutput(name, place, tuple(last_parameters(model, name)))
        for place, (name, output) in enumerate(outputs.items())
        if classes_of(output) == len(labels)
    )
    return replace(c, labelled=labelled)
