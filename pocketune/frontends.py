"""What a front end is made of, by its public name: the protocol, an imported model, and the graph of one."""

from __future__ import annotations

from converter.frontends.protocol import FrontEnd, Others
from converter.frontends.source import Defaults, Language, Library, Regularization, Source, Words
from converter.ir import Builder, Graph, Origin, Parameter, TensorType, Value, ops, verify
from converter.ir.batch_norm import BatchNorm
from converter.support.errors import UnsupportedError, UsageError
from converter.support.notes import Note

__all__ = [
    "BatchNorm",
    "Builder",
    "Defaults",
    "FrontEnd",
    "Graph",
    "Language",
    "Library",
    "Note",
    "Origin",
    "Others",
    "Parameter",
    "Regularization",
    "Source",
    "TensorType",
    "UnsupportedError",
    "UsageError",
    "Value",
    "Words",
    "ops",
    "verify",
]
