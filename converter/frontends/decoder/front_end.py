"""Front end of language models: `.gguf` files and folders of transformers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax_frontend
from converter.frontends.decoder.model import Model
from converter.frontends.protocol import FrontEnd, Others
from converter.frontends.source import Defaults, Language, Source, Words
from converter.ir import Graph
from converter.passes.idioms import with_idioms
from converter.support.notes import half_notes

#: Learning rates where an optimizer is named without one. At 1e-3, Adam's usual one, a model of half a billion weights
#: has learned four lines by heart in 24 steps and gives them for an answer to everything; see docs/language-models.md.
RATES = {"adam": 2e-4, "adamw": 2e-4}
#: Tokens that `prefill` reads at once, of longer rows.
_AT_ONCE = 32


class DecoderFrontEnd(FrontEnd):
    """Imports language models."""

    options = ("length",)

    def takes(self, model: Any) -> bool:
        if isinstance(model, str | os.PathLike):
            return str(model).endswith(".gguf") or (Path(model) / "config.json").is_file()
        return isinstance(model, Model)

    def opened(self, model: Any) -> Model:
        return model if isinstance(model, Model) else Model(model)

    def with_options(self, model: Any, asked: Mapping[str, Any]) -> Model:
        return replace(model, **asked) if isinstance(model, Model) else Model(model, **asked)

    def source(self, model: Model, rows: int, others: Others) -> Source:
        net, found = model.jax_model(), jax_frontend.Findings()
        return Source(
            with_idioms(jax_frontend.trace(net, rows, found)),
            net.name,
            net.layers,
            [*found.notes, *half_notes(found.halves), *model.opened.notes],
            defaults=Defaults(loss="next_token", optimizer="adam", rates=RATES),
            words=Words(card=model.opened.card),
            language=Language(_reading_on(model), model.names_in_gguf()),
            lengths={n: partial(self.source, other, others=others) for n, other in model.shorter().items()},
        )


def _reading_on(model: Model) -> Mapping[str, Callable[[], Graph]]:
    """Return what makes the graphs of `prefill`, which reads several tokens, and of `decode`, which reads one."""
    several = min(_AT_ONCE, model.lengths[-1])
    return {"prefill": partial(model.reading_on, several), "decode": partial(model.reading_on, 1)}


FRONT_END = DecoderFrontEnd()
