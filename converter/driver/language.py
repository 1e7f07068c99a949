"""Language models among the arguments of a build: files and folders. Their front end loads on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converter.support.errors import UsageError
from converter.support.libraries import is_instance

if TYPE_CHECKING:
    from converter.ir import Graph

#: Learning rates where an optimizer is named without one. At 1e-3, Adam's usual one, a model of half a billion weights
#: has learned four lines by heart in 24 steps and gives them for an answer to everything; see docs/language-models.md.
RATES = {"adam": 2e-4, "adamw": 2e-4}
#: Tokens that `prefill` reads at once, of longer rows.
_AT_ONCE = 32


def is_language_model(model: Any) -> bool:
    """Return whether something is a `.gguf` path, a folder of transformers or a `converter.frontends.decoder.Model`."""
    if isinstance(model, str | Path):
        return str(model).endswith(".gguf") or (Path(model) / "config.json").is_file()
    return is_instance(model, "converter.frontends.decoder", "Model")


def language_model(model: Any) -> Any:
    """Return the `converter.frontends.decoder.Model` of either of these."""
    from converter.frontends import decoder as decoder_frontend

    return model if isinstance(model, decoder_frontend.Model) else decoder_frontend.Model(model)


def with_length(model: Any, length: int | Sequence[int] | None) -> Any:
    """Return a language model for rows of so many tokens, or of each of several numbers; None: as it is.

    Raises:
        UsageError: the model is none, or was trained with fewer.
    """
    if length is None:
        return model
    if not is_language_model(model):
        raise UsageError(
            "length is the number of tokens in a row of a .gguf file; another model says by its inputs what it takes",
            page="arguments",
        )
    from converter.frontends import decoder as decoder_frontend

    if isinstance(model, decoder_frontend.Model):
        return replace(model, length=length)
    return decoder_frontend.Model(model, length=length)


def reading_on(model: Any) -> Mapping[str, Callable[[], Graph]]:
    """Return what makes the graphs of `prefill`, which reads several tokens, and of `decode`, which reads one."""
    several = min(_AT_ONCE, model.lengths[-1])
    return {"prefill": partial(model.reading_on, several), "decode": partial(model.reading_on, 1)}
