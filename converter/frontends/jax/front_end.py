"""Front end of JAX: a `pocketune.Model`, and modules of Flax and Equinox, which do not define their inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax_frontend
from converter.frontends.protocol import FrontEnd, Others, check_inputs, says_inputs
from converter.frontends.source import Source
from converter.ir import TensorType
from converter.passes.idioms import with_idioms
from converter.support.errors import UsageError
from converter.support.notes import half_notes


class JaxFrontEnd(FrontEnd):
    """Traces functions and modules of JAX."""

    def takes(self, model: Any) -> bool:
        return isinstance(model, jax_frontend.Model) or jax_frontend.is_module(model)

    def with_inputs(self, model: Any, inputs: Any) -> jax_frontend.Model:
        check_inputs(inputs)
        if isinstance(model, jax_frontend.Model):
            raise says_inputs()
        return jax_frontend.Model(model, inputs=inputs)

    def suffix(self, model: Any, features: TensorType) -> jax_frontend.Model:
        if not isinstance(model, jax_frontend.Model):
            return self.with_inputs(model, [features])
        return model if model.inputs else replace(model, inputs=[features])

    def source(self, model: Any, rows: int, others: Others) -> Source:
        if not isinstance(model, jax_frontend.Model):
            raise UsageError(
                "a module of Flax or Equinox does not say what it takes: build("
                f"{type(model).__name__}, inputs=[jax.ShapeDtypeStruct((1, 28, 28, 1), 'float32')]), one entry an "
                "input, the first axis the batch; elsewhere pocketune.Model(module, inputs=[...])",
                page="models",
            )
        found = jax_frontend.Findings()
        graph = with_idioms(jax_frontend.trace(model, rows, found))
        names = graph.parameter_names()
        norms = [layer for layer in found.batch_norms.values() if {layer.mean, layer.variance} <= names.keys()]
        notes = [*found.notes, *half_notes(found.halves)]
        return Source(graph, model.name, model.layers, notes, batch_norms=norms, interface=found.interface)


FRONT_END = JaxFrontEnd()
