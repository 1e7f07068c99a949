"""Named optimizers of optax, and their usual learning rates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import optax

from converter.support.errors import UsageError, nearest
from converter.training.optim.calls import call_update, check_traceable
from converter.training.optim.parts import parts

#: The optimizers that a name alone stands for, and the learning rate of one that is named without.
NAMED = {
    "sgd": 0.1,
    "momentum": 0.01,
    "adam": 1e-3,
    "adamw": 1e-3,
    "rmsprop": 1e-3,
    "adagrad": 1e-2,
    "lion": 1e-4,
}
#: Of the others, which a table of options names.
RATE_OF_ADADELTA = 1.0
_OTHERS = {"adadelta": RATE_OF_ADADELTA, "lars": 0.1, "noisy_sgd": 0.1, "optimistic_gradient_descent": 0.1}
_USUAL = 1e-3
#: Names that optax does not have: the factory and the options they stand for.
_ALIASES: dict[str, tuple[str, dict[str, Any]]] = {"momentum": ("sgd", {"momentum": 0.9})}
#: optax makes something else of these without a rate than it does of a number.
_WITHOUT = ("adafactor",)


@dataclass(frozen=True)
class NamedOptimizer:
    """An optimizer of optax' own (or `momentum`), with options. No other function of optax has a name here.

    Attributes:
        name: what it is called.
        options: its arguments by name; all else is optax' default (adamw decays weights by 1e-4).
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def takes_default(self) -> bool:
        """Whether it takes a learning rate and none is given."""
        taken = "learning_rate" in inspect.signature(self._factory).parameters
        return taken and "learning_rate" not in self.options and self.name not in _WITHOUT

    @property
    def default_rate(self) -> float:
        """The learning rate where none is given."""
        return {**NAMED, **_OTHERS}.get(self.name, _USUAL)

    def transformation(self) -> optax.GradientTransformation:
        """Return what optax makes of it.

        Raises:
            UsageError: no such optimizer, no such option, or a value that it cannot compute with.
            UnsupportedError: it needs what a compiled step has not.
        """
        factory, parameters = self._factory, inspect.signature(self._factory).parameters
        for option in self.options:
            if option not in parameters:
                raise UsageError(
                    f"the optimizer {self.name} has no option {option!r}.{nearest(option, parameters)}",
                    page="optimizers",
                )
        implied = _ALIASES.get(self.name, (self.name, {}))[1]
        rate = {"learning_rate": self.default_rate} if self.takes_default else {}
        weights = {"b": jnp.ones(3), "w": jnp.ones((2, 3))}
        try:
            made = factory(**{**rate, **implied, **self.options})
            check_traceable(made)
            call_update(
                made, weights, made.init(weights), weights, jnp.float32(1)
            )  # options of a wrong type are noticed only here
        except (TypeError, ValueError, AttributeError) as error:
            shown = ", ".join(f"{key} = {value!r}" for key, value in self.options.items())
            raise UsageError(
                f"optimizer: {self.name} cannot compute with {shown or 'its defaults'}: {error}", page="optimizers"
            ) from None
        return made

    @property
    def _factory(self) -> Callable[..., Any]:
        factories = _factories()
        known = [*factories, *_ALIASES]
        if self.name not in known:
            raise UsageError(
                f"unknown optimizer {self.name!r}.{nearest(self.name, known)} optax has no optimizer of that name.",
                page="optimizers",
            )
        return factories[_ALIASES.get(self.name, (self.name, {}))[0]]


@cache
def _factories() -> dict[str, Callable[..., Any]]:
    """Return optax's optimizers by name."""
    return {name: made for name, made in vars(optax).items() if _is_factory(name, made)}


def _is_factory(name: str, made: Any) -> bool:
    """Return whether a name of optax is that of a whole optimizer: a function that takes a rate, or the largest one."""
    if not inspect.isfunction(made) or name.startswith(("_", "scale_by_")):
        return False
    return any(parameter.endswith("learning_rate") for parameter in inspect.signature(made).parameters)


def resolve(optimizer: Any) -> Any:
    """Return the optax transformation of a name, with its default rate, or of a transformation.

    Raises:
        UsageError: no such name (the nearest are listed), or not an optax transformation.
    """
    if isinstance(optimizer, str):
        if optimizer not in NAMED:
            raise UsageError(
                f"unknown optimizer {optimizer!r}.{nearest(optimizer.lower(), NAMED)} "
                f"Known: {', '.join(NAMED)}, or an optax.GradientTransformation (in a recipe: a table of name and "
                'options, as { name = "lamb" }).',
                page="optimizers",
            )
        return NamedOptimizer(optimizer).transformation()
    if isinstance(optimizer, NamedOptimizer):
        return optimizer.transformation()
    if isinstance(optimizer, type):
        raise UsageError(
            f"the optimizer is the class {optimizer.__name__}: make one of it; of torch.optim of the module's "
            f"parameters, {optimizer.__name__}(module.parameters(), lr=...)",
            page="optimizers",
        )
    if not (callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))):
        raise UsageError(
            f"an optimizer is one of {', '.join(NAMED)}, a torch.optim.Optimizer or an optax.GradientTransformation, "
            f"not {optimizer!r}",
            page="optimizers",
        )
    return optax.chain(optimizer, optax.scale(-RATE_OF_ADADELTA)) if lacks_rate(optimizer) else optimizer


def lacks_rate(optimizer: Any) -> bool:
    """Return whether it is `optax.adadelta()`: without a rate optax leaves out its minus, too."""
    names = {part.name for part in parts(optimizer)}
    return {"scale_by_adadelta", "identity"} <= names and not names & {"scale", "scale_by_schedule"}
