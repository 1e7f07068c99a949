"""`decoder_frontend.Model`: the decoder of a GGUF file, and how it is to be built."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jax_frontend
from converter.ir import Graph
from converter.passes.idioms import with_idioms
from converter.support.errors import UsageError
from decoder_frontend.configuration import Configuration, configuration_of
from decoder_frontend.decoder import continuation, decoder
from decoder_frontend.gguf_file import GGUFFile, read_gguf
from decoder_frontend.names import FREQUENCY_FACTORS, parameters_of
from decoder_frontend.stored import StoredTensor

#: Tokens of a row where nobody says how many.
_LENGTH = 256


@dataclass(frozen=True)
class Model:
    """A language model of a `.gguf` file: token ids -> logits of the token that follows each.

    Attributes:
        path: of the file.
        length: tokens of a row; shorter texts are padded on the right, with labels below 0. None: 256, or as many as
            the model was trained with where these are fewer.
        packed: whether a row may hold several texts: a second input says of each token which text it is of.
        name: what the program is called; empty: the name of the file.

    Raises:
        UsageError: the file cannot be read, is damaged, or holds what is not computed, or the length is longer than
            what the model was trained with.
    """

    path: str | os.PathLike
    length: int | None = None
    packed: bool = False
    name: str = ""
    _read: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", Path(self.path).stem)
        length: Any = min(_LENGTH, self.configuration.context) if self.length is None else self.length
        object.__setattr__(self, "length", length)
        if type(length) is not int or not 1 <= length <= self.configuration.context:
            raise UsageError(
                f"length is a number of tokens from 1 to the {self.configuration.context:,} that {self.path} was "
                f"trained with, not {length!r}",
                page="language-models",
            )

    @property
    def file(self) -> GGUFFile:
        """The file, opened."""
        if "file" not in self._read:
            self._read["file"] = read_gguf(Path(self.path))
        opened: GGUFFile = self._read["file"]
        return opened

    @property
    def configuration(self) -> Configuration:
        """Of the net."""
        table = self.file.tensors.get("token_embd.weight")
        if table is None:
            raise UsageError(
                f"{self.path} has no table of embeddings, token_embd.weight: it is no whole language model",
                page="language-models",
            )
        return configuration_of(self.file.metadata, table.shape[0], self.path)

    def parameters(self) -> dict[str, StoredTensor]:
        """Return the weights by the names of `transformers`; none is read."""
        if "parameters" not in self._read:
            self._read["parameters"] = parameters_of(self.file, self.configuration)
        found: dict[str, StoredTensor] = self._read["parameters"]
        return found

    def jax_model(self) -> jax_frontend.Model:
        """Return the model as one of JAX."""
        apply = decoder(self.configuration, self._tokens, self._frequency_factors())
        inputs = [jax.ShapeDtypeStruct((1, self._tokens), np.int32)] * (2 if self.packed else 1)
        return jax_frontend.Model(apply, self.parameters(), inputs, name=self.name)

    def reading_on(self, tokens: int) -> Graph:
        """Return the graph of `continuation`, whose inputs and outputs are called as there."""
        c = self.configuration
        apply = continuation(c, self._tokens, tokens, self._frequency_factors())
        kept = jax.ShapeDtypeStruct((1, c.layers, c.key_heads, self._tokens, c.head_width), np.float32)
        numbers = [jax.ShapeDtypeStruct(shape, np.int32) for shape in ((1, tokens), (1,), (1,))]
        graph = jax_frontend.trace(jax_frontend.Model(apply, self.parameters(), [*numbers, kept, kept]), 1)
        for value, name in zip(graph.inputs, ("ids", "position", "count", "kept_keys", "kept_values"), strict=True):
            value.name = name
        return with_idioms(graph)

    @property
    def _tokens(self) -> int:
        assert self.length is not None
        return self.length

    def _frequency_factors(self) -> np.ndarray | None:
        factors = self.file.tensors.get(FREQUENCY_FACTORS)
        return None if factors is None else np.asarray(factors)
