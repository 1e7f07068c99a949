"""Language models among the arguments of a build: `.gguf` files. Their front end loads on demand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from converter.support.errors import UsageError


def is_language_model(model: Any) -> bool:
    """Return whether something is the path of a `.gguf` file or a `decoder_frontend.Model`."""
    if isinstance(model, str | Path):
        return str(model).endswith(".gguf")
    return any(f"{base.__module__}.".startswith("decoder_frontend.") for base in type(model).__mro__)


def language_model(model: Any) -> Any:
    """Return the `decoder_frontend.Model` of either of these."""
    import decoder_frontend

    return model if isinstance(model, decoder_frontend.Model) else decoder_frontend.Model(model)


def with_length(model: Any, length: int | None) -> Any:
    """Return a language model for rows of so many tokens; None: as it is.

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
    import decoder_frontend

    if isinstance(model, decoder_frontend.Model):
        return replace(model, length=length)
    return decoder_frontend.Model(model, length=length)
