"""`pocketune.search`: which part of a model should train."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from converter.backend.targets import Target
from converter.backend.targets import target as find_target
from converter.driver.defaults import taken_over
from converter.driver.losses import import_loss, scored_outputs, without_idle_outputs
from converter.driver.models import Opened, open_model, with_own_augmentation
from converter.driver.option_keywords import options_of
from converter.driver.options import Options
from converter.driver.requests import check_weights
from converter.frontends.source import Source
from converter.ir.graph import to_text
from converter.program.manifest import rows_to_infer
from converter.support.errors import UsageError
from converter.support.extras import require
from converter.tools.search.budgets import Budget, check_head, parse_budgets
from converter.tools.search.effort import Effort
from converter.tools.search.evaluator import Evaluator, Progress, SearchJournal, digest
from converter.tools.search.explore import Explorer
from converter.tools.search.found import Found
from converter.tools.search.limit import TimeLimit
from converter.tools.search.rate_schedule import RateSchedule
from converter.tools.search.space import granted, read_space
from converter.tools.search.splits import count_rows, split
from converter.tools.search.subject import Evaluation, Subject
from converter.tools.search.workers import Inline, Processes, Ray, Workers
from converter.training.losses import Loss

#: What every search compares with; those that a model does not allow are listed with the reason.
COMPARED = ("full", "head", "bias-only", "last-2", "last-3", "lora", "skip-lora", "pockengine")
#: The scheme that is chosen by architecture.
PRIOR = "pockengine"
#: Learning rates where none are given: of optimizers that scale the gradient, and of those that do not.
_RATES = (1e-3, 3e-3, 1e-2)
_RATES_OF_PLAIN = {"sgd": (1e-2, 3e-2, 1e-1), "momentum": (3e-3, 1e-2, 3e-2)}


def search(
    model: Any,
    data: tuple[Any, Any],
    budget: Sequence[str] | str = (),
    *,
    group: Any = None,
    samples: int | None = None,
    epochs: int = 10,
    schedule: str = "constant",
    warmup: float = 0.0,
    effort: Effort | None = None,
    out: str | Path | None = None,
    workers: int = 1,
    ray: str | None = None,
    minutes: float | None = 5.0,
    stop: threading.Event | None = None,
    progress: Progress = lambda how_far: None,
    **options: Any,
) -> Found:
    """Find which part of a model should train within a budget, by training its parts with the compiled programs.

    Args:
        model: as for `pocketune.build`.
        data: (x, y), all rows, as for `TrainingSession.evaluate`; what is held out of them is chosen here.
        budget: `memory=64MiB`, `step=40ms` (of a target whose table holds times), `step=30%` (of full training),
            `memory=head+25%`; one of each at the most.
        group: whose each row is, a number or name: then each training is with the rows of one, and the figures
            reported are of others than those that selected.
        samples: rows that a training learns from; None: half of those that there are for it.
        epochs: of a training.
        schedule: what the learning rate does in it: `constant`, or `cosine`, which falls to 0.
        warmup: the share of the steps in which the rate rises before that.
        effort: how much is tried; None: the default, with learning rates as the optimizer wants them.
        out: a folder for the journal, in which a search that was killed goes on.
        workers: processes that train; 0: this one.
        ray: the address of a Ray cluster that trains instead, `local` for one of this machine's.
        minutes: that it may take; None: until nothing is left to try. The head is trained whatever that takes.
        stop: ends it with the best so far, where another thread sets it.
        progress: told of each job that is done: the stage, how many of how many, the best scheme so far, the time left.
        **options: as for `pocketune.build` (loss, optimizer, batch, micro_batch, target, state, signatures, ...),
            without `update` and `check`.

    Raises:
        UsageError: an argument is wrong, the head does not fit the budget, the folder is of another search, or a
            library is not installed.
        UnsupportedError, NumericError: as `pocketune.build`.
        DeviceError: workers die.
    """
    require(*(("ray", "--ray") if ray else ("search", "search")))
    asked = options_of("search", options, "update", "check")
    opened = open_model(model, asked)
    asked = replace(_asked(opened, asked), inputs=None)
    target = find_target(asked.target)
    _check_measurable(effort, target)
    budgets = parse_budgets([budget] if isinstance(budget, str) else budget, target)
    x, y = data
    effort = effort or Effort(rates=default_rates(asked.optimizer))
    parts = split(count_rows(x), y, None if group is None else np.asarray(group), samples, effort.seeds)
    source = opened.source(asked.micro_batch or asked.batch)
    check_weights(source)
    counts = _counts(source, asked)
    course = RateSchedule(schedule, warmup)
    subject = Subject(source, asked, x, y, parts, epochs, course)
    _check_possible(subject, budgets)
    subject.check()
    setting = {
        "model": digest(to_text(source.graph), {p.name: p.model_value for p in source.graph.parameters.values()}),
        "data": digest(x, y, None if group is None else np.asarray(group)),
        "samples": samples,
        **_conditions(asked, target),
        "epochs": epochs,
        "course": asdict(course),
    }
    journal = SearchJournal(_journal(out), setting)
    some: Workers = Ray(subject, ray) if ray else Processes(subject, workers) if workers else Inline(subject)
    limit = TimeLimit(None if minutes is None else 60 * minutes, stop)
    evaluator = Evaluator(some, journal, progress, limit)
    trained, scored = _trained(source, asked)
    explorer = Explorer(read_space(trained, effort.ratios, scored), evaluator, effort, budgets)
    try:
        findings = explorer.run(COMPARED, granted(trained, PRIOR, scored))
    finally:
        some.close()
    frozen = subject.frozen(findings.found.update)
    return Found(findings, source.name, target.unit, counts, effort, setting, frozen)


def _asked(model: Opened, options: Options) -> Options:
    """Return the options of all builds of a search. Raises UsageError for those that a search chooses itself."""
    asked = with_own_augmentation(model, options)
    if asked.memory_budget or any(map(rows_to_infer, asked.signatures)):
        raise UsageError(
            "search: leave memory_budget and infer_<rows> out; the budget of memory is budget='memory=...'",
            page="search",
        )
    return asked


def _check_measurable(effort: Effort | None, target: Target) -> None:
    """Raise UsageError where steps are to be measured, and the target's table holds no times."""
    if effort is not None and effort.measure and target.unit != "ns":
        raise UsageError(
            f"measure: the table of {target.name} holds no times. On x86-64 say target='litert-2/x86-64', "
            "anywhere --profile measured",
            page="search",
        )


def _conditions(asked: Options, target: Target) -> dict[str, Any]:
    """Return what a search goes by beside its model and data: with other options or costs it is another one."""
    table = {name: sorted(v) if isinstance(v, frozenset) else v for name, v in vars(target).items()}
    options = {
        name: digest(value) if name == "calibration" else _said(value) for name, value in sorted(asked.asked().items())
    }
    return {"table": digest(repr(table)), "options": options}


def _check_possible(subject: Subject, budgets: Sequence[Budget]) -> None:
    """Raise UsageError for budgets that not even the head meets, before a row is looked at or a process started."""
    names = dict.fromkeys(("head", *(budget.of for budget in budgets if budget.of))) if budgets else ()
    costs = {name: priced["costs"] for name in names if "costs" in (priced := subject(Evaluation(name)))}
    if len(costs) == len(names):  # of one that the model does not allow more is said later
        check_head(budgets, costs)


def _counts(source: Any, options: Options) -> bool:
    """Return whether programs count right answers. Raises UsageError where there is no rate to search for."""
    loss, rule, _ = taken_over(source, options.loss, options.optimizer)
    if rule.running_rate is not None:
        raise UsageError(
            f"search tries learning rates, and that of {rule.name} runs in the program "
            f"({rule.running_rate.description}): name an optimizer with a constant rate (--optimizer adam)",
            page="search",
        )
    goal = import_loss(loss, source.graph, options.y, options.loss_weights, source.library)
    return isinstance(goal, Loss) and goal.link is not None and goal.counts


def _trained(source: Source, options: Options) -> tuple[Source, list[str]]:
    """Return the model with all fixed that the loss does not depend on, and names of the outputs that enter it."""
    loss = taken_over(source, options.loss, options.optimizer).loss
    scored = scored_outputs(loss, source.graph, options.y, options.loss_weights, source.library)
    return without_idle_outputs(source, loss, options.loss_weights), scored


def default_rates(optimizer: Any) -> tuple[float, ...]:
    """Learning rates to try with an optimizer."""
    return _RATES_OF_PLAIN.get(optimizer or "sgd", _RATES) if isinstance(optimizer, str | None) else _RATES


def _journal(out: str | Path | None) -> Path | None:
    if out is None:
        return None
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {out}: {error.strerror or error}", page="search") from None
    return Path(out) / "journal.jsonl"


def _said(value: Any) -> Any:
    """Return an option as JSON, by which a search knows its journal again."""
    try:
        json.dumps(value)
    except TypeError:
        return getattr(value, "name", None) or getattr(value, "__qualname__", type(value).__name__)
    return value
