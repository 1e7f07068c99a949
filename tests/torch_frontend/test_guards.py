"""What changes gradients where no graph shows it is refused with its layer and line, or read as PyTorch means it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pocketune
from converter.frontends import torch as torch_frontend
from converter.support.errors import PocketuneError
from scripts.torch.nets.tasks import CLASSES, task_of
from scripts.torch.sweep import tried


class Own(torch.autograd.Function):
    """A function with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, x: Any, scale: float) -> Any:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        s = torch.sigmoid(ctx.saved_tensors[0])
        return ctx.scale * dy * s * (1 + ctx.saved_tensors[0] * (1 - s)), None


class Bounded(torch.autograd.Function):
    """x, whose gradient is not more than 1; it takes no context."""

    @staticmethod
    def forward(x: Any) -> Any:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return dy.clamp(-1, 1)


swish, bounded = Own.apply, Bounded.apply


class Called(nn.Module):
    """A function of a module and its input between two layers."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function
        self.inner, self.other, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)
        self.count, self.state = 0, torch.zeros(4)

    def forward(self, x: Any) -> Any:
        return self.head(self.function(self, self.inner(x)))


def imported(module: nn.Module, *inputs: Any) -> Any:
    return torch_frontend.import_torch(torch_frontend.Model(module, inputs or (torch.zeros(2, 4),)), 2)


def _all(m: Any, x: Any) -> Any:
    with torch.inference_mode():
        fixed = m.other(x)
    y = swish(x, 1.0) + fixed.clone()
    y = checkpoint(torch.tanh, y, use_reentrant=True)
    return y + (y.round() - y).data


@pytest.mark.quick
def test_what_can_be_read_trains_as_in_pytorch() -> None:
    """A true derivative of one's own, a region without gradients, a checkpoint, and what is taken out by `.data`."""
    assert dict(tried(lambda: (Called(_all), task_of((4,))), ["full/adamw"])) == {"full/adamw": []}


def _hooked(m: Any, x: Any) -> Any:
    x.register_hook(lambda dy: 2 * dy)
    return x


def _renormed(m: Any, x: Any) -> Any:
    with torch.no_grad():
        m.other.weight.clamp_(-0.1, 0.1)
    return m.other(x)


def _behind_detach(m: Any, x: Any) -> Any:
    x.detach().clamp_(min=0)
    return x


def _derived(m: Any, x: Any) -> Any:
    return torch.autograd.grad(torch.tanh(x).sum(), x, create_graph=True)[0]


def _unpooled(m: Any, x: Any) -> Any:
    y, places = nn.functional.max_pool1d(x[:, None], 2, return_indices=True)
    return nn.functional.max_unpool1d(y, places, 2)[:, 0]


HERE = r"\S*test_guards.py:\d+"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda m, x: swish(x, 2.0), rf"backward pass of Own at {HERE} is not the derivative.*detach\(\)"),
        (lambda m, x: bounded(x), rf"backward pass of Bounded at {HERE} is not the derivative"),
        (_hooked, rf"a hook on a gradient.*{HERE} in _hooked"),
        (_derived, rf"a derivative that is taken in forward.*{HERE} in _derived"),
        (lambda m, x: x * float(m.other.bias[0]), rf"a number out of a tensor.*{HERE}"),
        (_renormed, rf"a parameter that is written into[\s\S]*{HERE}"),
        (lambda m, x: x @ m.other.weight.data.mul_(2), rf"a parameter that is written into[\s\S]*{HERE}"),
        (_behind_detach, rf"written into behind detach\(\)[\s\S]*{HERE}"),
        (lambda m, x: nn.functional.dropout(x), rf"random numbers[\s\S]*{HERE}[\s\S]*training=self.training"),
        (lambda m, x: (x > 0).to(torch.uint8) * 200 * x, rf"arithmetic in uint8[\s\S]*{HERE}"),
        (lambda m, x: x.to(torch.int8) * x, rf"a conversion to int8[\s\S]*{HERE}"),
        (_unpooled, rf"gives beside its first result[\s\S]*{HERE}"),
    ],
)
def test_what_a_graph_does_not_show_is_refused_at_its_line(function: Any, said: str) -> None:
    with pytest.raises(PocketuneError, match=said):
        imported(Called(function))


def _with(change: Callable[[Any], Any]) -> nn.Module:
    module = Called(lambda m, x: m.other(x))
    change(module)
    return module


def _aliased(m: Any) -> None:
    m.other.weight = nn.Parameter(m.inner.weight.data.T)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (_with(lambda m: m.other.register_full_backward_hook(print)), r"layer other \(Linear\) has a backward hook"),
        (_with(lambda m: m.register_full_backward_pre_hook(print)), r"Called has a backward hook"),
        (_with(lambda m: m.other.weight.register_hook(print)), r"weight of layer other \(Linear\) has a hook"),
        (_with(lambda m: m.head.bias.register_post_accumulate_grad_hook(print)), r"bias of layer head .* has a hook"),
        (_with(_aliased), r"inner.weight and other.weight are two tensors in the same memory"),
        (_with(lambda m: m.register_buffer("mean", m.inner.bias.data)), r"inner.bias and mean are two tensors"),
        (nn.Sequential(nn.LazyLinear(3)), r"layer 0 \(LazyLinear\) has no weight and no bias yet.*call it once"),
        (nn.Sequential(torch.jit.script(nn.Linear(4, 3))), r"layer 0 .* is TorchScript"),
        (nn.Embedding(4, 3, scale_grad_by_freq=True), r"how often a row occurs"),
        (nn.Embedding(4, 3, max_norm=1.0), r"a parameter that is written into[\s\S]*max_norm"),
        (nn.EmbeddingBag(4, 3, scale_grad_by_freq=True), r"how often a row occurs"),
    ],
)
def test_modules_that_would_train_otherwise_are_refused(module: nn.Module, said: str) -> None:
    x = torch.zeros((2, 4), dtype=torch.int64 if "Embedding" in type(module).__name__ else torch.float32)
    with pytest.raises(PocketuneError, match=said):
        imported(module, x)


def test_parts_of_one_memory_are_no_alias_and_frozen_ones_may_be() -> None:
    both = torch.randn(8, 4)

    def separate(m: Any) -> None:
        m.inner.weight, m.other.weight = nn.Parameter(both[:4]), nn.Parameter(both[4:])

    imported(_with(separate))
    imported(_with(lambda m: _aliased(m.requires_grad_(False))).requires_grad_(False))


def _counting(m: Any, x: Any) -> Any:
    m.count += 1
    m.state = x.detach()
    return x * min(m.count / 3, 1.0)


def test_what_is_kept_for_the_next_call_is_told_and_put_back() -> None:
    module = Called(_counting)
    state = module.state
    said = {note.subject: note.why for note in imported(module).notes}
    assert said.keys() == {"count", "state"}
    assert "begins with its value now" in said["count"]
    assert module.count == 0
    assert module.state is state
    assert not module._forward_hooks


def test_numbers_of_other_types_are_told() -> None:
    def halved(m: Any, x: Any) -> Any:
        places = (x.argmax(-1, keepdim=True) * 1_000_003) % 4
        return x.half().float() + x.gather(1, places)

    said = {note.status: note.why for note in imported(Called(halved)).notes}
    assert said.keys() == {"in float32", "in int32"}
    assert "float16" in said["in float32"]


def test_what_no_gradient_reaches_is_fixed_with_a_note() -> None:
    def frozen(m: Any, x: Any) -> Any:
        with torch.no_grad():
            return m.other(x)

    module = nn.Sequential(Called(frozen), nn.Linear(CLASSES, 2))
    program = pocketune.build(module, inputs=(torch.zeros(2, 4),), loss=nn.CrossEntropyLoss(), batch=2, check=False)
    fixed = [note.subject for note in program.notes if note.status == "fixed" and "no gradient reaches" in note.why]
    assert len(fixed) == 1
    assert fixed[0].startswith("0.inner.bias, 0.inner.weight, 0.other.bias and 1 more")


def test_inputs_lie_in_lists_and_dicts_and_some_are_numbers() -> None:
    class Taking(nn.Module):
        """Takes what is no tensor."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, batch: Any, twice: bool, scale: float) -> Any:
            y = self.inner(batch["u"]) * batch["v"][0] * scale
            return 2 * y if twice else y

    module, one = Taking(), torch.randn(1, 4)
    graph = imported(copy.deepcopy(module), {"v": [torch.randn(1, 3)], "u": one}, True, 0.5).graph
    assert sorted(value.shape for value in graph.inputs) == [(2, 3), (2, 4)]


def test_functions_are_put_back() -> None:
    kept = Own.forward, torch.inference_mode.__enter__, Own.__dict__["forward"]
    imported(Called(partial(_all)))
    assert (Own.forward, torch.inference_mode.__enter__, Own.__dict__["forward"]) == kept


def test_losses_are_guarded() -> None:
    def loss(outputs: Any, y: Any) -> Any:
        return (bounded(outputs) - y).square().mean(1)

    with pytest.raises(PocketuneError, match=rf"the loss .* cannot be traced: the backward pass of Bounded at {HERE}"):
        pocketune.build(nn.Linear(4, 3), inputs=(torch.zeros(2, 4),), loss=loss, batch=2)
