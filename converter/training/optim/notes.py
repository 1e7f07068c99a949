"""Notes on optimizers: what one does that its author may not expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from converter.support.errors import is_ours
from converter.support.notes import Note
from converter.training.optim.calls import call_update
from converter.training.optim.keys import is_key
from converter.training.optim.named import resolve
from converter.training.optim.parts import TELLING_APART, parts
from converter.training.optim.program import OptimizerProgram
from converter.training.optim.trace import tree_of
from jax_frontend.model import named_leaves

#: Steps of which one goes down for each weight, of an optimizer that descends.
_STEPS = 8

_CLIMBS = (
    "the optimizer goes up the gradient there: optax.masked hands on the gradients of what its mask leaves out as they "
    "are. To keep such weights build with optax.multi_transform (partition) and optax.set_to_zero() for them, or "
    "freeze them by update="
)
_DRAWS = (
    "random numbers of its own in each step, by a key in its state, which begins as the one that it was built with; of "
    "the distribution that JAX draws from, and not the same numbers"
)
_AVERAGES = (
    "infer, evaluate and what is exported have the weights at which gradients are taken; the average that "
    "optax.contrib.schedule_free_eval_params gives is (weight - (1 - b1) z) / b1, with the slots z of session.state()"
)
_CLIMBS_BY_TURNS = (
    "of {} calls of train the last one descends; after the others infer, evaluate and what is exported have the "
    "weights to which it has climbed"
)


def optimizer_notes(optimizer: Any, rule: OptimizerProgram, shapes: Mapping[str, tuple[int, ...]]) -> list[Note]:
    """Return what to say of an optimizer, and of the weights that it does not train as one expects.

    Args:
        optimizer: as for `trace_optimizer`.
        rule: what was traced of it.
        shapes: of the parameters that train, in the model's own layout, by name.
    """
    tx = resolve(optimizer)
    made_of = parts(tx)
    # What is optax's or ours and tells no weights apart descends for all of them, or was refused: to try takes a while.
    may_climb = any(p.name in TELLING_APART or not (p.is_of_optax or is_ours(p.module)) for p in made_of)
    notes = [Note(name, "trains", _CLIMBS) for name in (climbing(tx, shapes) if may_climb else ())]
    if rule.keys:
        notes.append(Note("optimizer", "trains", _DRAWS))
    found = [part for part in made_of if part.is_of_optax]
    if any(part.name == "schedule_free" for part in found):
        notes.append(Note("optimizer", "trains", _AVERAGES))
    periods = [part.closed_over["sync_period"] for part in found if part.name == "sam" and part.closed_over]
    notes += [Note("optimizer", "trains", _CLIMBS_BY_TURNS.format(period)) for period in periods]
    return notes


def climbing(tx: Any, shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the parameters whose updates all go up a gradient that stays, of small ones as many axes as these have.

    Args:
        tx: an optax transformation.
        shapes: of the parameters, by name.
    """
    rng = np.random.default_rng(0)

    def small(low: float, high: float) -> Any:
        sizes = {name: tuple(min(size, 2) for size in shape) for name, shape in shapes.items()}
        return jax.tree.map(
            jnp.asarray, tree_of({n: rng.uniform(low, high, size).astype(np.float32) for n, size in sizes.items()})
        )

    # Weights so small that no decay outweighs a gradient, and positive, as some optimizers keep them.
    weights, slopes = small(0, 0.01), small(-1, 1)
    found = set(shapes)
    try:
        state = tx.init(weights)
        draws = any(map(is_key, jax.tree.leaves(state)))
        for _ in range(_STEPS):
            moved, after = call_update(tx, slopes, state, weights, jnp.float32(1))
            if draws:  # without the noise
                mirrored, _ = call_update(tx, jax.tree.map(jnp.negative, slopes), state, weights, jnp.float32(1))
                moved = jax.tree.map(jnp.subtract, moved, mirrored)
            rises = named_leaves(jax.tree.map(jnp.vdot, moved, slopes))
            found &= {name for name, rise in rises.items() if float(rise) > 0}
            if not found:
                break
            state = after
    except Exception:  # what cannot be traced is said elsewhere
        return []
    return [name for name in shapes if name in found]
