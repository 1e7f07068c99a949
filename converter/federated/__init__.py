"""Federated training of a program on unmodified Flower: clients that train on their own rows, and the server's part."""

from __future__ import annotations

from collections.abc import Iterable

from converter.federated.app import client_app
from converter.federated.arrays import Exchange, RefusedRound
from converter.federated.coordinator import Coordinator
from converter.federated.node import Served, serve
from converter.federated.participant import Participant
from converter.federated.plan import Bounds, Plan
from converter.federated.privacy import Privacy, epsilon
from converter.federated.project import Project
from converter.federated.rows import read_rows
from converter.program.file import Readable, read_program

__all__ = [
    "Bounds",
    "Coordinator",
    "Exchange",
    "Participant",
    "Plan",
    "Privacy",
    "Project",
    "RefusedRound",
    "Served",
    "client_app",
    "epsilon",
    "identity",
    "read_rows",
    "serve",
]


def identity(program: Readable, personal: Iterable[str] = ()) -> str:
    """Return what a server's config names as `program`: the same for all builds of a model that may be averaged.

    Args:
        program: the `.tflite`, or its bytes.
        personal: patterns of tensors that stay with the clients, as clients and server take them. Where the last layer
            does, the labels of the classes may be others.

    Raises:
        UsageError: it is none, or cannot be trained by several, or a pattern matches nothing.
    """
    return Exchange(read_program(program), personal=personal).identity
