"""Guards of a trace: what changes or takes gradients where a graph does not show it is refused at its line.

`torch.autograd.Function` is traced through its forward pass, and hooks of tensors leave no trace.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributions import Distribution
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from converter.frontends.torch.places import place_in
from converter.frontends.torch.replaced import REPLACED, given_causality

_TENSOR: Any = torch.Tensor
_HOOKS = (_TENSOR.register_hook, _TENSOR.register_post_accumulate_grad_hook)
_DERIVATIVES = (torch.autograd.grad, torch.autograd.backward, _TENSOR.backward)
#: Factors of the numbers at which a backward pass is compared with the derivative: it may depend on how large they are.
_SCALES = (0.01, 1.0, 100.0)


class NotTraceableError(Exception):
    """Says what a trace cannot hold, and what to do."""


@dataclass
class Guard:
    """What was found while a module was traced.

    Attributes:
        functions: the calls of each `torch.autograd.Function`: class, line and arguments.
    """

    functions: list[tuple[Any, str, list[Any]]] = field(default_factory=list)

    def check(self) -> None:
        """Raise NotTraceableError for a function whose backward pass is not the derivative of its forward pass."""
        for function, where, arguments in self.functions:
            if not _is_derivative(function, arguments):
                raise NotTraceableError(
                    f"the backward pass of {function.__name__}{f' at {where}' if where else ''} is not the derivative "
                    "of its forward pass, and of a torch.autograd.Function the forward pass alone is read. Write it by "
                    "detach(): x + (f(x) - x).detach() is f(x) with the gradient of x, 2 * x - x.detach() is x with "
                    "twice its gradient"
                )


@contextmanager
def guarded() -> Iterator[Guard]:
    """While it lasts, traces are guarded; what was found is to be checked after it."""
    guard = Guard()
    with ExitStack() as changes:
        for function in _functions(torch.autograd.Function):
            made = _once if function is CheckpointFunction else _noted(guard, function)
            _change(changes, function, "forward", staticmethod(made))
        _change(changes, torch.inference_mode, "__enter__", _enter)
        _change(changes, torch.inference_mode, "__exit__", _exit)
        _change(changes, FakeTensor, "data", property(lambda x: x.detach(), _TENSOR.data.__set__))
        _change(changes, Distribution, "_validate_args", False)  # it looks at numbers, and changes none
        _change(changes, transformer, "_detect_is_causal_mask", given_causality)
        changes.enter_context(_Mode())
        yield guard


def _functions(base: Any) -> Iterator[Any]:
    """All classes derived from a class that have a forward pass of their own."""
    for kind in base.__subclasses__():
        of_operator = kind.__module__.startswith(("torch._library.", "torch._higher_order_ops."))  # it is in the graph
        if "forward" in vars(kind) and not of_operator:
            yield kind
        yield from _functions(kind)


def _change(changes: ExitStack, where: Any, name: str, value: Any) -> None:
    """Give a class or a module of Python another attribute for a while."""
    if name in vars(where):
        changes.callback(setattr, where, name, vars(where)[name])
    else:
        changes.callback(delattr, where, name)
    setattr(where, name, value)


@contextmanager
def assigned(module: torch.nn.Module) -> Iterator[list[str]]:
    """While it lasts, numbers and tensors that a module assigns to its attributes are listed by path."""
    before: dict[str, Any] = {}
    found: list[str] = []

    def begins(*_: Any) -> None:
        before.update(_attributes(module))

    def ends(*_: Any) -> None:
        for name, value in _attributes(module).items():
            is_same = value is before.get(name) or (not isinstance(value, torch.Tensor) and value == before.get(name))
            if not is_same and name not in found:
                found.append(name)

    with ExitStack() as hooks:
        hooks.callback(module.register_forward_pre_hook(begins).remove)
        hooks.callback(module.register_forward_hook(ends).remove)
        yield found


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    """Numbers and tensors that are attributes of layers, by path; neither parameters nor buffers."""
    return {
        f"{path}.{name}".removeprefix("."): value
        for path, layer in module.named_modules()
        for name, value in vars(layer).items()
        if isinstance(value, bool | int | float | torch.Tensor)
    }


class _Mode(TorchFunctionMode):
    """Sees all functions of PyTorch that are called."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return what the function does, or raise NotTraceableError."""
        if func in _HOOKS:
            raise NotTraceableError(
                "a hook on a gradient, which a program does not run. Leave it out while it is built; to scale the "
                "gradient of x by s write s * x + (1 - s) * x.detach()"
            )
        if func in _DERIVATIVES:
            raise NotTraceableError(
                "a derivative that is taken in forward. Write the derivative out, or compute it outside of the module"
            )
        return REPLACED.get(func, func)(*args, **(kwargs or {}))


def _enter(self: Any) -> None:
    """`torch.inference_mode` as `torch.no_grad`, of which a trace knows."""
    self.traced = torch.set_grad_enabled(not self.mode and torch.is_grad_enabled())
    self.traced.__enter__()


def _exit(self: Any, *error: Any) -> None:
    self.traced.__exit__(*error)


def _once(_: Any, function: Callable[..., Any], __: bool, *arguments: Any) -> Any:
    """The forward pass of a checkpoint: what is computed again in the backward pass is traced once."""
    return function(*arguments)


def _noted(guard: Guard, function: Any) -> Callable[..., Any]:
    """The forward pass of a `torch.autograd.Function`; calls of it are noted."""
    own = function.forward

    def forward(*arguments: Any) -> Any:
        given = arguments if _has_setup(function) else arguments[1:]
        guard.functions.append((function, _caller(), [_spec(a) for a in given]))
        return own(*arguments)

    return forward


def _has_setup(function: Any) -> bool:
    """Whether a function's forward pass takes no context."""
    return function.setup_context is not torch.autograd.Function.setup_context


def _caller() -> str:
    """The line of the user's code that is running."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if place := place_in(frame.f_code.co_filename, frame.f_lineno):
            return place
        frame = frame.f_back
    return ""


@dataclass(frozen=True)
class _Spec:
    """A tensor among arguments."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def drawn(self, scale: float, rng: torch.Generator) -> torch.Tensor:
        """Return noise of this type, ones of integers."""
        if not self.dtype.is_floating_point:
            return torch.ones(self.shape, dtype=self.dtype)
        return (scale * torch.randn(self.shape, generator=rng)).requires_grad_()


def _spec(argument: Any) -> Any:
    return _Spec(tuple(argument.shape), argument.dtype) if isinstance(argument, torch.Tensor) else argument


class _Context:
    """What a forward pass may say of its backward pass, none of which is asked for."""

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (True,) * count

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def _is_derivative(function: Any, arguments: list[Any]) -> bool:
    """Return whether a function's backward pass gives what its forward pass has as derivative, at some places."""
    rng = torch.Generator().manual_seed(0)
    try:
        with torch.enable_grad():
            for scale in _SCALES:
                given = [a.drawn(scale, rng) if isinstance(a, _Spec) else a for a in arguments]
                trained = [a for a in given if isinstance(a, torch.Tensor) and a.requires_grad]
                if not trained:
                    return True
                made = _tensors(function.apply(*(_again(a) for a in given)))
                plain = _tensors(_forward(function, [_again(a) for a in given]))
                cotangents = [scale * torch.randn(y.shape, generator=rng) for y in made]
                mine, own = (_gradients(ys, trained, cotangents) for ys in (plain, made))
                if not all(torch.allclose(a, b, 1e-3, 1e-6 * scale * scale) for a, b in zip(mine, own, strict=True)):
                    return False
    except Exception:  # whatever the user's code raises on other numbers: then it is not known
        return False
    return True


def _again(argument: Any) -> Any:
    """An argument that may be written into."""
    return argument * 1 if isinstance(argument, torch.Tensor) and argument.requires_grad else argument


def _forward(function: Any, arguments: list[Any]) -> Any:
    context = [] if _has_setup(function) else [_Context(len(arguments))]
    return function.forward(*context, *arguments)


def _tensors(made: Any) -> list[torch.Tensor]:
    return [y for y in (made if isinstance(made, tuple) else (made,)) if y is not None and y.is_floating_point()]


def _gradients(ys: list[torch.Tensor], xs: list[torch.Tensor], cotangents: list[torch.Tensor]) -> list[torch.Tensor]:
    able = [(y, dy) for y, dy in zip(ys, cotangents, strict=True) if y.requires_grad]
    if not able:
        return [torch.zeros_like(x) for x in xs]
    found = torch.autograd.grad([y for y, _ in able], xs, [dy for _, dy in able], allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(xs, found, strict=True)]
