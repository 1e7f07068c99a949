"""Learning rate schedules in the program: what one is called, and from which step on it is 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from converter.training.optim.calls import call_update
from converter.training.optim.parts import TELLING_APART, name_of, parts
from converter.training.optim.trace import tree_of
from jax_frontend.model import named_leaves

#: Steps up to which rates are looked at: more than any device trains.
_MOST_STEPS = 1 << 20
#: How many of them at once.
_AT_ONCE = 512
#: Steps before which an update is no more than 0, as of what gathers the gradients of several.
_FIRST = 32
#: Where optax and the Keras frontend keep rates that change.
_RATES = ("step_size_fn", "learning_rate", "rate", "sched_hps")
#: What any optimizer takes that tells no parameters apart but by their axes.
_PLAIN: Mapping[str, tuple[int, ...]] = {"b": (2,), "w": (2, 2)}

#: Compiled quickly, to run a few times.
_QUICK = {"xla_backend_optimization_level": 0}

#: Of numbers of steps, int32 [_AT_ONCE], something at each of them, [_AT_ONCE].
Course = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class ScheduledRate:
    """A learning rate that the program computes itself; the step's input multiplies it.

    Attributes:
        description: in words.
        highest: the largest rate that its schedule gives; None where there is none, or several.
        zero_from: the number of the step (0, 1, ...) from which on no update changes anything; None where that is
            never, or cannot be told.
        counter: the optimizer's slot that counts these steps, as `OptimizerProgram.slots` names it; None where
            nothing needs to be counted.
    """

    description: str
    highest: float | None = None
    zero_from: int | None = None
    counter: str | None = None


def running_rate(tx: Any, shapes: Mapping[str, tuple[int, ...]]) -> ScheduledRate:
    """Return what there is to say of the rate of an optimizer of which it is no single number.

    Args:
        tx: an optax.GradientTransformation.
        shapes: of the parameters, by name.
    """
    schedules = [_Schedule.of(function) for function in _schedules(tx)]
    if any(part.name == "scale" and part.is_of_optax and not part.closed_over["step_size"] for part in parts(tx)):
        return ScheduledRate("0", 0.0, 0)
    injected = any(part.name.startswith("inject_") for part in parts(tx))
    fallback = "hyperparameters in its state" if injected else "a rate of its own that is not one factor of its updates"
    highest = schedules[0].highest if len(schedules) == 1 else None
    counter, zero_from = _end(tx, shapes if _distinguishes(tx) else _PLAIN) or (None, None)
    return ScheduledRate(", ".join(map(str, schedules)) or fallback, highest, zero_from, counter)


class _Schedule(NamedTuple):
    """What is told of a schedule.

    Attributes:
        name: what it is called.
        first: its rate before the first step.
        highest: the largest.
        last: the rate that it comes to.
        steps: after how many; None where it goes on.
    """

    name: str
    first: float | None = None
    highest: float | None = None
    last: float | None = None
    steps: int | None = None

    @staticmethod
    def of(function: Callable[[Any], Any]) -> _Schedule:
        name = _name(function)
        try:
            course = _at_once(lambda count: jnp.abs(jnp.asarray(function(count), jnp.float32)))
            rates = course(_spread(0, _MOST_STEPS))
        except Exception:  # a function of one's own: tracing it says what is wrong
            return _Schedule(name)
        first, last = float(rates[0]), float(rates[-1])
        return _Schedule(name, first, float(rates.max()), last, _settled(lambda counts: course(counts) - last))

    def __str__(self) -> str:
        if self.first is None or self.highest is None:
            return self.name
        if self.steps == 0:
            return f"{self.first:g}, which is no factor of all that an update adds"
        most = f", at most {self.highest:g}" if self.highest > 1.000001 * self.first else ""
        end = "" if self.steps is None else f" to {self.last:g} in {self.steps} steps"
        return f"{self.name} from {self.first:g}{most}{end}"


def _schedules(tx: Any) -> Iterator[Callable[[Any], Any]]:
    """Yield the schedules of learning rates that an optimizer holds, each once."""
    seen: set[int] = set()
    for part in parts(tx):
        for name in _RATES:
            held = part.closed_over.get(name)
            for found in held.values() if isinstance(held, dict) else [held]:
                # What `scale_by_learning_rate` makes turns the sign of another.
                if callable(found) and id(found) not in seen and name_of(found) != "scale_by_learning_rate":
                    seen.add(id(found))
                    yield getattr(found, "schedule_fn", found)  # of `inject_hyperparams`


def _name(schedule: Callable[[Any], Any]) -> str:
    """Return what a schedule is called; of joined ones, of which it is made."""
    if name_of(schedule) != "join_schedules":
        return name_of(schedule)
    joined = next(part.closed_over.get("schedules", ()) for part in parts(schedule) if part.name == "join_schedules")
    return " and ".join(dict.fromkeys(map(_name, joined)))


def _at_once(function: Callable[[Any], Any]) -> Course:
    made = jax.jit(jax.vmap(function), compiler_options=_QUICK)
    return lambda counts: np.asarray(made(jnp.asarray(counts, jnp.int32)))


def _spread(low: int, high: int) -> np.ndarray:
    """Return numbers from `low` to `high`, both with them, closer together near `low`: [_AT_ONCE]."""
    return np.r_[low, low + np.geomspace(1, high - low, _AT_ONCE - 1).round().astype(np.int64)]


def _settled(changing: Course) -> int | None:
    """Return the first number from which on something is 0 up to the most steps; None where it never is."""
    low, high = 0, _MOST_STEPS
    while True:
        numbers = _spread(low, high)
        lasting = np.flatnonzero(changing(numbers) != 0)
        if not len(lasting):
            return int(numbers[0])
        if lasting[-1] == len(numbers) - 1:
            return None
        low, high = int(numbers[lasting[-1]]), int(numbers[lasting[-1] + 1])
        if high == low + 1:
            return high if high < _MOST_STEPS else None


def _distinguishes(tx: Any) -> bool:
    """Return whether an optimizer does something else to some parameters than to others."""
    return any(part.name in TELLING_APART for part in parts(tx))


def _end(tx: Any, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, int] | None:
    """Return the counter on which all updates depend, and the number from which on they are 0."""
    rng = np.random.default_rng(0)
    small = {name: [min(size, 2) for size in shape] for name, shape in shapes.items()}
    parameters, gradients = (
        jax.tree.map(jnp.asarray, tree_of({name: rng.random(shape, np.float32) for name, shape in small.items()}))
        for _ in range(2)
    )

    def step(state: Any) -> tuple[Any, Any]:
        updates, after = call_update(tx, gradients, state, parameters, jnp.float32(1))
        return sum(jnp.sum(jnp.abs(u)) for u in jax.tree.leaves(updates)), after

    try:
        state = _moving(jax.jit(step, compiler_options=_QUICK), tx.init(parameters))
        return None if state is None else _end_of(step, state)
    except Exception:  # what cannot be traced is said elsewhere
        return None


def _moving(step: Callable[[Any], tuple[Any, Any]], state: Any) -> Any:
    """Return a state whose next update is more than 0; None where there is none."""
    _, state = step(state)
    for _ in range(_FIRST):
        moved, after = step(state)
        if moved:
            return state
        state = after
    return None


def _end_of(step: Callable[[Any], tuple[Any, Any]], state: Any) -> tuple[str, int] | None:
    names, (leaves, tree) = list(named_leaves(state)), jax.tree.flatten(state)

    def at(which: list[int], count: Any) -> tuple[Any, list[Any]]:
        moved, after = step(jax.tree.unflatten(tree, [count if i in which else leaf for i, leaf in enumerate(leaves)]))
        return moved, jax.tree.leaves(after)

    def course(which: list[int]) -> Course:
        return _at_once(lambda count: at(which, count)[0])

    def counts(i: int) -> bool:
        """Return whether it goes on from any number."""
        after = _at_once(lambda count: at([i], count)[1][i])
        given = _spread(1, _MOST_STEPS)
        return bool(np.isin(after(given) - given, (0, 1)).all())

    counters = [i for i, leaf in enumerate(leaves) if leaf.shape == () and leaf.dtype.kind == "i"]
    counters = [i for i in counters if counts(i)]
    for which in [*([i] for i in counters), *([counters] if len(counters) > 1 else [])]:
        if (end := _settled(course(which))) is not None:
            return f"optimizer/{names[which[0]]}", end
    return None
