"""Language models of GGUF files: a decoder in JAX that is read from the file's metadata, with the file's weights."""

# ruff: noqa: E402 (what is missing is said before it is imported)
from converter.support.extras import require

require("gguf", "a .gguf file")

from decoder_frontend.architectures import ARCHITECTURES
from decoder_frontend.configuration import Configuration
from decoder_frontend.model import Model
from decoder_frontend.tokenizer import Conversation, Tokenizer

__all__ = ["ARCHITECTURES", "Configuration", "Conversation", "Model", "Tokenizer"]
