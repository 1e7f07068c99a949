"""`frozen="int4"`: frozen dense layers and embeddings in int4, multiplied exactly or in a dynamic range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from converter.backend.quantize.choose import FrozenLayer
from converter.backend.quantize.weight_only import store_as_int4
from converter.driver.compilation import Compilation
from converter.driver.options import INT4_BLOCKS
from converter.ir import Graph
from converter.support.notes import Note


def store(c: Compilation) -> Compilation:
    """Store what is frozen whole in int4."""
    if not c.options.is_int4:
        return c
    from converter.driver.quantization import NothingToQuantizeError, QuantizationReport

    model, layers = stored(c, c.graphs.model)
    if all(layer.form == "float32" for layer in layers):
        reasons = "; ".join(dict.fromkeys(layer.why for layer in layers)) or "there is none with weights"
        asked = f"frozen={c.options.frozen!r}"
        raise NothingToQuantizeError(f"{asked} changes nothing: no frozen layer becomes int4 ({reasons})")
    if c.options.frozen == "int4-dynamic" and not any(layer.form == "int4-dynamic" for layer in layers):
        raise NothingToQuantizeError(
            "frozen='int4-dynamic' rounds nothing: no frozen dense layer has its scales by output and another product "
            "after it. frozen='int4' builds the same program"
        )
    notes = [*c.notes, *_rounding_notes(layers)]
    return replace(
        c.staged(model=model, unrounded=c.graphs.model), quantization=QuantizationReport(layers), notes=notes
    )


def _rounding_notes(layers: Iterable[FrozenLayer]) -> Iterator[Note]:
    """Yield what to say of the layers that round what they read, if there are any."""
    count = sum(layer.form == "int4-dynamic" for layer in layers)
    if count:
        why = (
            f"in {count} frozen dense layers each row is rounded to int8 by its own range, in training and inference "
            "alike; gradients are those of the exact products (straight-through). frozen='int4' rounds no activation"
        )
        yield Note("activations", "rounded", why)


def stored(c: Compilation, forward: Graph) -> tuple[Graph, tuple[FrozenLayer, ...]]:
    """Return a forward graph with what the scheme freezes in int4, and what became of each frozen layer."""
    frozen = {row.parameter for row in c.resolved if row.is_constant}
    return store_as_int4(forward, frozen, INT4_BLOCKS[c.options.frozen], c.options.frozen == "int4-dynamic")
