"""Front end of PyTorch: modules and exported programs, live or their `.pt2` files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from converter.frontends.protocol import FrontEnd, Others, check_said_once, says_inputs
from converter.frontends.source import Source
from converter.frontends.torch.importer import import_torch
from converter.frontends.torch.library import TorchLibrary
from converter.frontends.torch.model import Model


class TorchFrontEnd(FrontEnd):
    """Imports modules of PyTorch."""

    options = ("outputs",)
    library = TorchLibrary()

    def takes(self, model: Any) -> bool:
        if isinstance(model, str | os.PathLike):
            return str(model).endswith(".pt2")
        return isinstance(model, Model | torch.nn.Module | torch.export.ExportedProgram)

    def opened(self, model: Any) -> Model:
        return model if isinstance(model, Model) else Model(model)

    def with_inputs(self, model: Any, inputs: Any) -> Model:
        if isinstance(model, Model):
            raise says_inputs()
        return Model(model, inputs)

    def with_options(self, model: Any, asked: Mapping[str, Any]) -> Model:
        model = self.opened(model)
        check_said_once(model, asked)
        return replace(model, **asked)

    def source(self, model: Any, rows: int, others: Others) -> Source:
        made = import_torch(model, rows)
        library = TorchLibrary(model.parameter_names())
        return Source(
            made.graph,
            model.name,
            notes=made.notes,
            batch_norms=made.batch_norms,
            library=library,
            interface=made.interface,
        )


FRONT_END = TorchFrontEnd()
