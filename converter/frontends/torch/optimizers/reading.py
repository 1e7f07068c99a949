"""Optimizer of `torch.optim` as an optax transformation: its rule, its groups by the names of their parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import torch
import torch.optim.optimizer as _of_all

from converter.frontends.torch.optimizers.rules import OF_ONE_NUMBER, RULES, Count, Rule, Slots
from converter.frontends.torch.optimizers.schedules import Scheduled, schedules_of
from converter.frontends.torch.optimizers.settings import Settings
from converter.support.errors import UsageError
from converter.support.libraries import is_defined_in
from converter.training.optim.foreign import ForeignOptimizer

#: A learning rate by the number of steps before.
Schedule = Callable[[Any], Any]
#: The name of the counter in the state.
_STEP = "step"
#: Why the other optimizers of torch.optim are not built.
_REFUSED = {
    "LBFGS": "it evaluates the loss several times in a step",
    "Rprop": "its learning rate is no factor of its steps",
    "ASGD": "its learning rate is no factor of its steps, and it averages the weights",
    "SparseAdam": "gradients in a program are dense: use Adam",
    "Adafactor": "its learning rate is no factor of its steps: use optax.adafactor",
    "Muon": "its steps are of whole matrices: use optax.contrib.muon",
}


#: What an optimizer keeps the hooks on its steps in.
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class _Group(NamedTuple):
    """A parameter group: its settings, and its rate in units of the first group's, or as it runs in the program."""

    settings: Settings
    rate: float | Schedule


def is_optimizer(candidate: Any) -> bool:
    """Return whether something is an optimizer of PyTorch, or a scheduler of one."""
    schedulers = (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    return isinstance(candidate, (torch.optim.Optimizer, *schedulers))


def read_optimizer(given: Any, names: Mapping[int, str]) -> ForeignOptimizer:
    """Return what an optimizer does.

    Args:
        given: a `torch.optim.Optimizer`, or a scheduler of one, which is asked once in each step.
        names: of the module's parameters by their `id`.

    Raises:
        UsageError: nothing here does what it does, or it has parameters that are not the module's.
    """
    scheduler, optimizer = _apart(given)
    kind = type(optimizer).__name__
    named = _named(optimizer, names)
    schedules = [] if scheduler is None else schedules_of(scheduler)
    groups = _groups(optimizer, kind, schedules)
    left_out = []
    if any(float(state.get("step", 1)) for state in optimizer.state.values()):
        left_out.append("what it keeps of the steps that it took in PyTorch: it begins anew")
    if held := min((schedule.held for schedule in schedules if schedule.held is not None), default=None):
        left_out.append(f"the schedule from step {held} on: the rate stays as it is then")
    return ForeignOptimizer(
        _transformation(RULES[kind], {name: groups[i] for name, i in named.items()}, groups[0]),
        f"{kind} of torch.optim",
        None if schedules else float(optimizer.param_groups[0]["lr"]),
        left_out,
        _kept(optimizer.param_groups, scheduler),
    )


def optimized(given: Any, names: Mapping[int, str]) -> frozenset[str]:
    """Return the names of the parameters that an optimizer has. Raise UsageError as `read_optimizer`."""
    return frozenset(_named(_apart(given)[1], names))


def _apart(given: Any) -> tuple[Any, Any]:
    """The scheduler, None for none, and the optimizer."""
    return (None, given) if isinstance(given, torch.optim.Optimizer) else (given, given.optimizer)


def _named(optimizer: Any, names: Mapping[int, str]) -> dict[str, int]:
    """The numbers of the groups by the names of their parameters."""
    kind = type(optimizer).__name__
    if not is_defined_in(type(optimizer), torch) or kind not in RULES:
        why = _REFUSED.get(kind, "nothing here does its arithmetic")
        raise UsageError(
            f"the optimizer {kind} cannot be taken over: {why}. Known: {', '.join(RULES)} of torch.optim, or an "
            "optax.GradientTransformation",
            page="optimizers",
        )
    _check_hooks(optimizer, kind)
    named: dict[str, int] = {}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise UsageError(
                    f"the optimizer {kind} has a parameter of the shape {list(parameter.shape)} that is none of the "
                    "module's: make it of the parameters of the module that is built",
                    page="optimizers",
                )
            named[names[id(parameter)]] = number
    return named


def _check_hooks(optimizer: Any, kind: str) -> None:
    """Raises UsageError where hooks act in its steps, or another step stands in the place of its own."""
    own = vars(optimizer).get("step")
    replaced = own is not None and not hasattr(own, "_wrapped_by_lr_sched")
    of_all = [_of_all._global_optimizer_pre_hooks, _of_all._global_optimizer_post_hooks]
    hooked = any([*(getattr(optimizer, name, None) for name in _HOOKS), *of_all])
    if replaced or hooked:
        what = "another step in the place of its own" if replaced else "a hook on its steps"
        raise UsageError(
            f"the optimizer {kind} has {what}, which a program does not run. Remove it (the handle's remove()); for "
            "what it does to gradients or weights use optax.chain of transformations",
            page="optimizers",
        )


def _groups(optimizer: Any, kind: str, schedules: Sequence[Scheduled]) -> list[_Group]:
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    if schedules:
        taken: list[float | Schedule] = [schedule.rate for schedule in schedules]
    elif rates[0] == 0 and any(rates):
        raise UsageError(
            f"the optimizer {kind} has the learning rate 0 in its first group and others in others: order the groups "
            "so that the first has one, or leave that one out",
            page="optimizers",
        )
    else:
        taken = [rate / rates[0] if rates[0] else 1.0 for rate in rates]
    return [_Group(Settings(kind, raw), rate) for raw, rate in zip(optimizer.param_groups, taken, strict=True)]


def _transformation(rule: Rule, groups: Mapping[str, _Group], usual: _Group) -> optax.GradientTransformation:
    """The transformation; parameters that no group names, as adapters, are of the first group."""

    def group_of(path: Sequence[Any]) -> _Group:
        return groups.get("/".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path), usual)

    def init(params: Any) -> dict[str, Any]:
        paths, tree = jax.tree_util.tree_flatten_with_path(params)
        first = [dict(rule.slots(group_of(path).settings)) for path, _ in paths]

        def slot(name: str) -> Any:
            shapes = [() if name in OF_ONE_NUMBER else jnp.shape(w) for _, w in paths]
            values = [
                jnp.full(shape, own[name], jnp.float32) if name in own else None
                for shape, own in zip(shapes, first, strict=True)
            ]
            return jax.tree.unflatten(tree, values)

        names = dict.fromkeys(name for own in first for name in own)
        return {_STEP: jnp.zeros([], jnp.int32), **{name: slot(name) for name in names}}

    def update(gradients: Any, state: dict[str, Any], params: Any = None) -> tuple[Any, dict[str, Any]]:
        before, count = state[_STEP], Count(state[_STEP])
        rates: dict[Any, Any] = {}
        paths, tree = jax.tree_util.tree_flatten_with_path(gradients)
        weights = tree.flatten_up_to(params)
        kept = {name: tree.flatten_up_to(slot) for name, slot in state.items() if name != _STEP}
        steps, after = [], {name: [None] * len(paths) for name in kept}
        for i, ((path, g), w) in enumerate(zip(paths, weights, strict=True)):
            slots = {name: values[i] for name, values in kept.items() if values[i] is not None}
            group = group_of(path)
            step, moved = _step(rule, group.settings, g, w, slots, count)
            if group.rate not in rates:
                rates[group.rate] = group.rate(before) if callable(group.rate) else group.rate
            steps.append(-rates[group.rate] * step)
            for name, value in moved.items():
                after[name][i] = value
        made = {name: jax.tree.unflatten(tree, values) for name, values in after.items()}
        return jax.tree.unflatten(tree, steps), {_STEP: before + 1, **made}

    return optax.GradientTransformation(init, update)


def _step(rule: Rule, settings: Settings, g: Any, w: Any, slots: Slots, count: Count) -> tuple[Any, Slots]:
    """What is subtracted from a weight at a rate of 1, and the next slots."""
    decay = settings.number("weight_decay")
    separate = rule.decoupled is True or (bool(rule.decoupled) and settings.flag(str(rule.decoupled)))
    g = -g if settings.flag("maximize") else g
    step, after = rule.step(g + decay * w if decay and not separate else g, w, slots, count, settings)
    return (step + decay * w if decay and separate else step), after


def _kept(groups: Sequence[Mapping[str, Any]], scheduler: Any) -> list[str]:
    """The settings that are used, in words."""
    kept = [] if scheduler is None else [type(scheduler).__name__]
    for name in ("momentum", "nesterov", "dampening", "weight_decay", "amsgrad", "centered", "maximize"):
        values: dict[Any, None] = dict.fromkeys(group[name] for group in groups if group.get(name))
        words = name.replace("_", " ")
        kept += [words if value is True else f"{words} {float(value):g}" for value in values]
    return [*kept, *([f"{len(groups)} parameter groups"] if len(groups) > 1 else [])]
