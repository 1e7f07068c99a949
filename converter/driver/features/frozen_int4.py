"""`frozen="int4"`: frozen dense layers and embeddings as integers of four bits, exactly met."""

from __future__ import annotations

from dataclasses import replace

from converter.driver.compilation import Compilation
from converter.driver.features.optimizer import like
from converter.ir import Graph
from converter.passes.read_weights import read_weights
from converter.tflite.backend import to_builtins
from converter.tflite.quantize.choose import FrozenLayer
from converter.tflite.quantize.weight_only import store_as_int4
from converter.training.losses import attach_loss


def store(c: Compilation) -> Compilation:
    """Store what is frozen whole in int4."""
    if c.options.frozen != "int4":
        return c
    from converter.driver.quantization import NothingToQuantizeError, QuantizationReport

    model, layers = stored(c, c.model)
    if all(layer.form == "float32" for layer in layers):
        reasons = "; ".join(dict.fromkeys(layer.why for layer in layers)) or "there is none with weights"
        raise NothingToQuantizeError(f"frozen='int4' changes nothing: no frozen layer becomes int4 ({reasons})")
    return replace(c, model=model, unrounded=c.model, quantization=QuantizationReport(layers))


def stored(c: Compilation, forward: Graph) -> tuple[Graph, tuple[FrozenLayer, ...]]:
    """Return a forward graph with what the scheme freezes in int4, and what became of each frozen layer."""
    return store_as_int4(forward, {row.parameter for row in c.resolved if row.fraction == 0})


def measure(c: Compilation) -> Compilation:
    """Compare the model with the float32 one on the samples, where there are any."""
    if c.options.frozen != "int4" or c.options.calibration is None:
        return c
    from converter.driver.quantization import compare, samples_of

    assert c.quantization is not None
    samples = samples_of(c.model, c.goal, c.options.calibration)
    exact = like(c.model, read_weights(c.unrounded), c.rows, c.rule.layout_invariant)
    before, after = (
        to_builtins(attach_loss(graph, c.goal) if samples.labelled else graph, c.once) for graph in (exact, c.model)
    )
    rows = c.model.inputs[0].shape[0]
    layers, classifies = c.quantization.layers, c.goal.classifies
    report = compare(before, after, samples, rows, layers, classifies, list(c.model.outputs))
    return replace(c, quantization=report)
