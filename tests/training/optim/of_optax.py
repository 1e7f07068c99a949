"""Every public function of optax that makes a transformation, with arguments that train a small model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any

import jax
import optax
from optax import contrib, transforms


def public() -> Iterator[str]:
    """Yield the names of the functions that say, or whose result shows, that they make a transformation."""
    for prefix, module in (("", optax), ("contrib.", contrib), ("transforms.", transforms)):
        for name, made in vars(module).items():
            if name.startswith("_") or not callable(made) or (prefix == "transforms." and hasattr(optax, name)):
                continue
            if name in UNANNOTATED or "GradientTransformation" in _result(made):
                yield prefix + name


def _result(function: Any) -> str:
    if inspect.isclass(function):
        return ""
    try:
        return str(inspect.signature(function).return_annotation)
    except (TypeError, ValueError):
        return ""


#: Those that say nothing of what they return.
UNANNOTATED = ("MultiSteps", "monitor", "scale_by_factored_rms", "dog", "dowg", "hutchinson_estimator_diag_hessian")


def _named(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = attrgetter(name)(optax)
    return found


_DOWN = optax.scale(-0.1)


def _then(transformation: Any) -> Any:
    """A part that has no rate of its own, with one behind it."""
    return optax.chain(transformation, _DOWN)


def _matrices(tree: Any) -> Any:
    return jax.tree.map(lambda p: p.ndim > 1, tree)


def _kinds(tree: Any) -> Any:
    return jax.tree.map(lambda p: "matrix" if p.ndim > 1 else "bias", tree)


def _flat(tree: Any) -> Any:
    return jax.tree.map(lambda _: contrib.MuonDimensionNumbers(), tree)


def _biases(tree: Any) -> Any:
    return jax.tree.map(lambda p: p.ndim == 1, tree)


def _norm(updates: Any, state: Any = None, params: Any = None, **_: Any) -> Any:
    return optax.tree.norm(updates)


#: Optimizers, which take a learning rate, and parts, which take nothing.
_RATED = """
adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan amsgrad fromage lamb lars lion nadam nadamw novograd
optimistic_adam_v2 optimistic_gradient_descent radam rmsprop rprop sgd sign_sgd signum sm3 yogi contrib.acprop
contrib.ademamix contrib.adopt contrib.cocob contrib.dadapt_adamw contrib.dog contrib.dowg contrib.galore
contrib.madgrad contrib.momo contrib.momo_adam contrib.muon contrib.prodigy contrib.schedule_free_adamw
contrib.schedule_free_sgd contrib.simplified_ademamix contrib.sophia
"""
_PARTS = """
add_decayed_weights apply_every centralize identity normalize_by_update_norm scale_by_adadelta scale_by_adam
scale_by_adamax scale_by_adan scale_by_amsgrad scale_by_belief scale_by_distance_over_gradients scale_by_factored_rms
scale_by_lbfgs scale_by_lion scale_by_novograd scale_by_optimistic_gradient scale_by_param_block_norm
scale_by_param_block_rms scale_by_radam scale_by_rms scale_by_rss scale_by_sign scale_by_sm3 scale_by_stddev
scale_by_trust_ratio scale_by_yogi zero_nans contrib.hutchinson_estimator_diag_hessian contrib.normalize
contrib.scale_by_acprop contrib.scale_by_ademamix contrib.scale_by_adopt contrib.scale_by_galore
contrib.scale_by_simplified_ademamix
"""

#: By name: what is made with it.
MADE: dict[str, Callable[[], Any]] = {
    **{name: partial(_named(name), 0.1) for name in _RATED.split()},
    **{name: lambda name=name: _then(_named(name)()) for name in _PARTS.split()},
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(0.1), 2),
    "adaptive_grad_clip": lambda: _then(optax.adaptive_grad_clip(0.1)),
    "add_noise": lambda: _then(optax.add_noise(0.01, 0.55, key=0)),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(0.1), 3),
    "chain": lambda: optax.chain(optax.clip(0.1), optax.adam(0.1)),
    "clip": lambda: _then(optax.clip(0.1)),
    "clip_by_block_rms": lambda: _then(optax.clip_by_block_rms(0.1)),
    "clip_by_global_norm": lambda: _then(optax.clip_by_global_norm(0.1)),
    "conditionally_mask": lambda: optax.conditionally_mask(optax.sgd(0.1), lambda step: step % 2 == 0),
    "conditionally_transform": lambda: _then(optax.conditionally_transform(optax.scale(0.5), lambda step: step > 1)),
    "ema": lambda: _then(optax.ema(0.9)),
    "flatten": lambda: optax.flatten(optax.adam(0.1)),
    "freeze": lambda: optax.chain(optax.sgd(0.1), optax.freeze(_biases)),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
    "inject_stateful_hyperparams": lambda: optax.inject_stateful_hyperparams(optax.adam)(learning_rate=0.1),
    "keep_params_nonnegative": lambda: optax.chain(optax.sgd(0.1), optax.keep_params_nonnegative()),
    "lbfgs": lambda: optax.lbfgs(),
    "lookahead": lambda: optax.lookahead(optax.sgd(0.1), 5, 0.5),
    "masked": lambda: optax.masked(optax.sgd(0.1), _matrices),
    "measure_with_ema": lambda: optax.chain(optax.sgd(0.1), optax.monitor({"n": optax.measure_with_ema(_norm, 0.9)})),
    "monitor": lambda: optax.chain(optax.sgd(0.1), optax.monitor({"n": _norm})),
    "multi_transform": lambda: optax.multi_transform({"matrix": optax.adam(0.1), "bias": optax.sgd(0.1)}, _kinds),
    "partition": lambda: optax.partition({"matrix": optax.adam(0.1), "bias": optax.sgd(0.1)}, _kinds),
    "named_chain": lambda: optax.named_chain(("one", optax.clip(0.1)), ("two", optax.sgd(0.1))),
    "noisy_sgd": lambda: optax.noisy_sgd(0.1, key=0),
    "optimistic_adam": lambda: optax.optimistic_adam(0.1, optimism=0.1),
    "polyak_sgd": lambda: optax.polyak_sgd(),
    "scale": lambda: optax.scale(-0.1),
    "scale_by_backtracking_linesearch": lambda: optax.chain(optax.sgd(0.1), optax.scale_by_backtracking_linesearch(5)),
    "scale_by_learning_rate": lambda: optax.scale_by_learning_rate(0.1),
    "scale_by_polyak": lambda: _then(optax.scale_by_polyak()),
    "scale_by_rprop": lambda: optax.chain(optax.scale_by_rprop(0.1), optax.scale(-1)),
    "scale_by_schedule": lambda: optax.scale_by_schedule(lambda step: -0.1 / (1 + step)),
    "scale_by_zoom_linesearch": lambda: optax.chain(optax.sgd(0.1), optax.scale_by_zoom_linesearch(5)),
    "selective_transform": lambda: optax.selective_transform(optax.adam(0.1), freeze_mask=_biases),
    "set_to_zero": lambda: optax.multi_transform({"matrix": optax.sgd(0.1), "bias": optax.set_to_zero()}, _kinds),
    "snapshot": lambda: optax.chain(optax.sgd(0.1), optax.snapshot("n", _norm)),
    "stateless": lambda: optax.stateless(lambda g, p: jax.tree.map(lambda g: -0.1 * g, g)),
    "stateless_with_tree_map": lambda: optax.stateless_with_tree_map(lambda g, p: -0.1 * g),
    "trace": lambda: _then(optax.trace(0.9)),
    "with_extra_args_support": lambda: optax.with_extra_args_support(optax.sgd(0.1)),
    "contrib.differentially_private_aggregate": lambda: contrib.differentially_private_aggregate(1.0, 0.1, key=0),
    "contrib.dpsgd": lambda: contrib.dpsgd(0.1, 1.0, 0.1, 0),
    "contrib.mechanize": lambda: contrib.mechanize(optax.adam(0.1)),
    "contrib.reduce_on_plateau": lambda: optax.chain(optax.sgd(0.1), contrib.reduce_on_plateau(patience=1)),
    "contrib.scale_by_cocob": lambda: optax.chain(contrib.scale_by_cocob()),
    "contrib.scale_by_muon": lambda: optax.multi_transform(
        {"matrix": _then(contrib.scale_by_muon(weight_dimension_numbers=_flat)), "bias": optax.sgd(0.1)}, _kinds),
    "contrib.sam": lambda: contrib.sam(optax.sgd(0.1), optax.chain(contrib.normalize(), optax.sgd(0.05))),
    "contrib.schedule_free": lambda: contrib.schedule_free(optax.sgd(0.1), 0.1),
    "contrib.scale_by_madgrad": lambda: optax.chain(contrib.scale_by_madgrad(0.1)),
    "contrib.split_real_and_imaginary": lambda: contrib.split_real_and_imaginary(optax.adam(0.1)),
}  # fmt: skip
