"""Data feeding of `fit`: rows in memory, or batches that come, and the step that takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from converter.program.manifest import Manifest
from converter.runtime.data.examples import Examples, check_examples, check_whole
from converter.runtime.data.lengths import check_rows, of_tokens
from converter.runtime.data.metrics import Metrics, measures
from converter.runtime.data.targets import check_targets, weigh_by_class
from converter.runtime.session.batches import Batches, Order, Shuffled, is_stream
from converter.runtime.session.remembering import Replay, check_some_train, replayed
from converter.runtime.session.skipping import SkipLearned
from converter.support.errors import UsageError


class Feed(NamedTuple):
    """What a training goes through.

    Attributes:
        batches: of its epochs.
        signature: that takes them.
        enter: called at its end, for the rows that enter a memory.
    """

    batches: Batches | Shuffled
    signature: str
    enter: Callable[[], None]


def feed_of(
    rows: tuple[Any, Any, Any],
    manifest: Manifest,
    check: Callable[[str, Any, Any, Any], Examples],
    features: Callable[[Any], Any],
    class_weight: Mapping[int, float] | None,
    order: Order,
    replay: Replay | None = None,
    skip: SkipLearned | None = None,
) -> Feed:
    """Return what a training goes through.

    Args:
        rows: x, y and weight as for `TrainingSession.fit`.
        manifest: of the program.
        check: gives the checked rows for a signature.
        features: gives what the frozen first layers make of x; called where the program has the signature.
        class_weight: how much the rows of a label count.
        order: of the rows and epochs.
        replay: what is mixed in.
        skip: which rows do not come in most epochs.

    Raises:
        UsageError: the rows are not those of the program, or not those of the memory.
    """
    x, y, weight = rows
    size = manifest.batch

    def weighed(examples: Examples) -> Examples:
        return examples if class_weight is None else weigh_by_class(examples, class_weight, manifest)

    if y is None and weight is None and is_stream(x):
        if replay is not None:
            raise UsageError("memory: rows of a stream do not enter one: pass the arrays", page="replay-memories")
        if skip is not None:
            raise UsageError(
                "skip: which row of a stream is which is not known in the next epoch: pass the arrays", page="sessions"
            )
        step = manifest.step
        return Feed(Batches(x, lambda *rows: weighed(check(step, *rows)), size, order.epochs), step, _nothing)

    def on_features(x: Any, y: Any, weight: Any) -> tuple[str, Examples]:
        """Return the step that takes rows, which were checked, and the rows as it takes them."""
        if "features" not in manifest.signatures:
            return manifest.step, check(manifest.step, x, y, weight)
        return manifest.step_on_features, check(manifest.step_on_features, features(x), y, weight)

    inputs = check(manifest.step, x, y, weight)
    signature, examples = on_features(x, y, weight)
    visit, old = None if replay is None else replay.memory.visit(inputs, replay.names), None
    if replay is not None and visit is not None:
        check_some_train(visit)
        old = replayed(replay.memory, on_features)
    fed = examples if visit is None else examples.take(visit.trains)
    share = 0.0 if replay is None else replay.share
    batches = Shuffled(weighed(fed), size, order, None if old is None else weighed(old), share, skip)
    check_whole(signature, manifest.calls[signature], batches.rows)
    kept = examples if replay is not None and replay.memory.keeps == "features" else inputs
    return Feed(batches, signature, _nothing if visit is None else partial(visit.enter, kept))


def _nothing() -> None:
    """No rows enter a memory."""


def check_resumable(feed: Feed, initial_epoch: int, learning_rate: Any) -> None:
    """Raise UsageError where the step that a training goes on with is not known."""
    if isinstance(feed.batches, Batches) and initial_epoch and callable(learning_rate):
        raise UsageError(
            "initial_epoch: a stream does not say which step it begins with: pass a number", page="sessions"
        )


def check_one_step(examples: Examples, manifest: Manifest) -> None:
    """Raise UsageError where rows are more than one step takes, or nothing to learn from."""
    if examples.rows > manifest.batch:
        raise UsageError(
            f"train takes at most {manifest.batch} rows, the batch of the program, and got "
            f"{examples.rows}: call fit, or build with a larger batch",
            page="sessions",
        )
    if not examples.weight:
        raise UsageError("weight: all rows have the weight 0, there is nothing to learn from", page="sessions")


def check_validation(
    judged: Examples | None, metrics: Metrics, manifest: Manifest, names: Sequence[str] | None
) -> None:
    """Raise UsageError where validation rows do not fit the program, or metrics have none to be computed from."""
    if judged is not None:
        check_whole("evaluate", manifest.calls["evaluate"], judged.rows)
    elif metrics is not None:
        raise UsageError(
            "metrics are computed after each epoch on validation rows: pass validation=(x, y) as well", page="sessions"
        )
    measures(metrics, manifest, judged, names)


def examples_for(signature: str, manifest: Manifest, x: Any, y: Any, weight: Any) -> Examples:
    """Return the checked rows for a signature. Raise UsageError where there is none, or the rows are not its."""
    if signature not in manifest.calls:
        raise UsageError(
            f"this program has no signature {signature!r}: build it with signatures=(..., {signature!r}), "
            f"on the command line --signatures ...,{signature}",
            page="sessions",
        )
    taken = manifest.calls[signature]
    if not manifest.by_length(signature):
        return check_targets(check_examples(taken, x, y, weight), manifest)
    longest = manifest.lengths[-1]
    rows = check_targets(check_rows(taken, x, y, weight, longest), manifest)
    return of_tokens(manifest, rows, longest) if taken.taking("target") else rows
