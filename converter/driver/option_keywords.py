"""Options as keywords: functions of a model that take each option by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from converter.driver.options import Options, declared

P = ParamSpec("P")
R = TypeVar("R")


def takes_options(
    options: Callable[P, Options], as_given: bool = False
) -> Callable[[Callable[[Any, Any], R], str], Callable[Concatenate[Any, P], R]]:
    """Return what makes of a function of a model and `Options` one with a keyword for each option, and of that name.

    Its docstring lists them, and types are those of the fields.

    Args:
        options: the class of these.
        as_given: the function takes the keywords as a mapping, which it makes options of itself.
    """

    def decorate(function: Callable[[Any, Any], R], name: str) -> Callable[Concatenate[Any, P], R]:
        signature, taken = inspect.signature(function), inspect.signature(options)
        model, *_ = signature.parameters.values()
        both = signature.replace(parameters=[model, *taken.parameters.values()])

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> R:
            try:
                given = both.bind(*args, **kwargs).arguments
            except TypeError as error:  # as Python says it of any function
                said = str(error) if str(error).startswith(("got", "missing")) else f"got {error}"
                raise TypeError(f"{name}() {said}") from None
            models = given.pop(model.name)
            return function(models, given if as_given else Options(**given))

        listed = (Options.__doc__ or "").partition("    Attributes:\n")[2].partition("    Raises:")[0].rstrip()
        before, returns, after = (function.__doc__ or "").partition("\n\n    Returns:")
        before = before.partition("\n        options:")[0]
        call.__doc__ = f"{before}\n{listed}{returns}{after}"
        call.__name__ = call.__qualname__ = name
        own = {of: kind for of, kind in function.__annotations__.items() if of in (model.name, "return")}
        call.__annotations__ = own | inspect.get_annotations(Options, eval_str=True)
        call.__dict__["__signature__"] = both
        return call

    return decorate


def options_of(function: str, keywords: Mapping[str, Any], *without: str) -> Options:
    """Return the options that a function was given by keyword, but for those that it has no use for.

    Raises:
        TypeError: it takes no such keyword, as Python says it.
        UsageError: as `Options`.
    """
    for name in keywords:
        if name not in declared() or name in without:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    return Options(**keywords)
