"""Language models of GGUF files: a decoder in JAX that is read from the file's metadata, with the file's weights."""

# ruff: noqa: E402 (what is missing is said before it is imported)
from converter.support.extras import require

require("gguf", "a .gguf file")

from converter.frontends.decoder.architectures import ARCHITECTURES
from converter.frontends.decoder.configuration import Configuration
from converter.frontends.decoder.model import Model
from converter.frontends.decoder.tokenizer import Conversation, Tokenizer

__all__ = ["ARCHITECTURES", "Configuration", "Conversation", "Model", "Tokenizer"]
