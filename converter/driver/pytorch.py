"""PyTorch objects among the arguments of a build: modules, losses and optimizers. Their front end loads on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from converter.support.errors import UsageError
from converter.support.libraries import is_instance, loaded


def is_torch_model(model: Any) -> bool:
    """Return whether something is a PyTorch module, an exported program, a `.pt2` path, or a `torch.Model` of ours."""
    if isinstance(model, str | Path):
        return str(model).endswith(".pt2")
    if is_instance(model, "keras", "Layer"):  # on Keras' own torch backend it is a module of both
        return False
    return (
        is_instance(model, "converter.frontends.torch", "Model")
        or is_instance(model, "torch.nn", "Module")
        or is_instance(model, "torch.export", "ExportedProgram")
    )


def torch_model(model: Any, inputs: Sequence[Any] | None = None) -> Any:
    """Return the `converter.frontends.torch.Model` of any of these, with example inputs where it is none already."""
    from converter.frontends import torch as torch_frontend

    return model if isinstance(model, torch_frontend.Model) else torch_frontend.Model(model, inputs)


def check_object(model: Any) -> None:
    """Raise UsageError for a class in the place of a model, and for weights alone."""
    if isinstance(model, type):
        raise UsageError(
            f"{model.__name__} is a class and no model: make one of it, {model.__name__}(...), and pass that",
            page="models",
        )
    if isinstance(model, Mapping) and model and all(is_instance(value, "torch", "Tensor") for value in model.values()):
        raise UsageError(
            "a dict of weights, as state_dict() gives it, has no layers: pass the module itself, its weights loaded by "
            "module.load_state_dict(...)",
            page="models",
        )


def is_torch_loss(loss: Any, of_torch: bool = False) -> bool:
    """Return whether something is a loss module of PyTorch, or a function that calls PyTorch.

    Args:
        loss: anything.
        of_torch: whether it is for a PyTorch module, whose losses are functions of tensors where they name no library.
    """
    if loaded("torch") is None or isinstance(loss, str):
        return False
    from converter.frontends import torch as torch_frontend

    return torch_frontend.is_loss(loss, of_torch)


def is_torch_optimizer(optimizer: Any) -> bool:
    """Return whether something is an optimizer of PyTorch, or a scheduler of one."""
    if loaded("torch") is None or optimizer is None or isinstance(optimizer, str):
        return False
    from converter.frontends import torch as torch_frontend

    return torch_frontend.is_optimizer(optimizer)
