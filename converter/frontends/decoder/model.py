"""`converter.frontends.decoder.Model`: the decoder of a file or folder, and how it is to be built."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jax_frontend
from converter.frontends.decoder.configuration import Configuration
from converter.frontends.decoder.decoder import continuation, decoder
from converter.frontends.decoder.folder import open_folder
from converter.frontends.decoder.names import Opened, names_in_gguf, open_gguf
from converter.frontends.decoder.stored import StoredTensor
from converter.ir import Graph
from converter.passes.idioms import with_idioms
from converter.program.gguf_names import Names
from converter.support.errors import UsageError

#: Tokens of a row where nobody says how many.
_LENGTH = 256


@dataclass(frozen=True)
class Model:
    """A language model of a `.gguf` file or a folder of `transformers`: ids -> logits of the token that follows each.

    Attributes:
        path: of the file, or of the folder with its `config.json` and `.safetensors`.
        length: tokens of a row; shorter texts are padded on the right, with labels below 0. Several, (64, 256): rows of
            each, and what is passed takes the fewest that hold it. None: 256, or as many as the model was trained
            with where these are fewer.
        packed: whether a row may hold several texts: a second input says of each token which text it is of.
        name: what the program is called; empty: the name of the file.

    Raises:
        UsageError: the file cannot be read, is damaged, or holds what is not computed, or the length is longer than
            what the model was trained with.
    """

    path: str | os.PathLike
    length: int | Sequence[int] | None = None
    packed: bool = False
    name: str = ""
    _read: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            path = Path(self.path)
            object.__setattr__(self, "name", path.name if path.is_dir() else path.stem)
        length: Any = min(_LENGTH, self.configuration.context) if self.length is None else self.length
        object.__setattr__(self, "length", length)
        for one in _several(length) or (length,):
            if type(one) is not int or not 1 <= one <= self.configuration.context:
                raise UsageError(
                    f"length is a number of tokens from 1 to the {self.configuration.context:,} that {self.path} was "
                    f"trained with, not {one!r}",
                    page="language-models",
                )

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of the rows that it is built for, the fewest first."""
        return tuple(sorted(set(_several(self.length))))

    def shorter(self) -> dict[int, Model]:
        """Return the model for each length but the longest."""
        return {length: replace(self, length=length) for length in self.lengths[:-1]}

    @property
    def opened(self) -> Opened:
        """The decoder, opened once."""
        if "opened" not in self._read:
            path = Path(self.path)
            self._read["opened"] = open_folder(path) if path.is_dir() else open_gguf(path)
        opened: Opened = self._read["opened"]
        return opened

    @property
    def configuration(self) -> Configuration:
        """Of the net."""
        return self.opened.configuration

    def parameters(self) -> Mapping[str, StoredTensor]:
        """Return the weights by the names of `transformers`; none is read."""
        return self.opened.parameters

    def names_in_gguf(self) -> Names | None:
        """Return what llama.cpp calls its matrices; None: it has no such models."""
        return names_in_gguf(self.configuration)

    def jax_model(self) -> jax_frontend.Model:
        """Return the model as one of JAX."""
        apply = decoder(self.configuration, self._tokens)
        inputs = [jax.ShapeDtypeStruct((1, self._tokens), np.int32)] * (2 if self.packed else 1)
        return jax_frontend.Model(apply, dict(self.parameters()), inputs, name=self.name)

    def reading_on(self, tokens: int) -> Graph:
        """Return the graph of `continuation`, whose inputs and outputs are called as there."""
        c = self.configuration
        apply = continuation(c, self._tokens, tokens)
        kept = jax.ShapeDtypeStruct((1, c.layers, c.kv_heads, self._tokens, c.head_width), np.float32)
        numbers = [jax.ShapeDtypeStruct(shape, np.int32) for shape in ((1, tokens), (1,), (1,))]
        graph = jax_frontend.trace(jax_frontend.Model(apply, dict(self.parameters()), [*numbers, kept, kept]), 1)
        for value, name in zip(graph.inputs, ("ids", "position", "count", "kept_keys", "kept_values"), strict=True):
            value.name = name
        return with_idioms(graph)

    @property
    def _tokens(self) -> int:
        return self.lengths[-1]


def _several(length: Any) -> tuple[int, ...]:
    """Return lengths, of one or several."""
    return tuple(length) if isinstance(length, list | tuple) else (length,)
