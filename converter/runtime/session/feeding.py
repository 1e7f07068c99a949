"""Data feeding of `fit`: rows in memory, or batches that come, and the step that takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from converter.program.manifest import Manifest
from converter.runtime.data.examples import Examples, check_examples, check_whole
from converter.runtime.data.lengths import check_rows, of_tokens
from converter.runtime.data.metrics import Metrics, measures
from converter.runtime.data.targets import check_targets, weigh_by_class
from converter.runtime.session.loop import Batches, Shuffled, is_stream
from converter.support.errors import UsageError


class Order(NamedTuple):
    """In which order rows come.

    Attributes:
        seed: of the order of rows in memory; None: they keep their own.
        first: what is added to the number of an epoch, which the order goes by, too.
        epochs: how often a stream is gone through.
    """

    seed: int | None
    first: int
    epochs: int


class Feed(NamedTuple):
    """The batches of a training, and the signature that takes them."""

    batches: Batches | Shuffled
    signature: str


def feed_of(
    rows: tuple[Any, Any, Any],
    manifest: Manifest,
    check: Callable[[str, Any, Any, Any], Examples],
    features: Callable[[Any], Any],
    class_weight: Mapping[int, float] | None,
    order: Order,
) -> Feed:
    """Return what a training goes through.

    Args:
        rows: x, y and weight as for `TrainingSession.fit`.
        manifest: of the program.
        check: gives the checked rows for a signature.
        features: gives what the frozen first layers make of x; called where the program has the signature.
        class_weight: how much the rows of a label count.
        order: of the rows and epochs.

    Raises:
        UsageError: the rows are not those of the program.
    """
    x, y, weight = rows
    signature, size = manifest.step, manifest.batch

    def checked(x: Any, y: Any, weight: Any = None) -> Examples:
        examples = check(signature, x, y, weight)
        return examples if class_weight is None else weigh_by_class(examples, class_weight, manifest)

    if y is None and weight is None and is_stream(x):
        return Feed(Batches(x, checked, size, order.epochs), signature)
    examples = checked(x, y, weight)
    if "features" in manifest.signatures:
        signature = manifest.step_on_features
        examples = checked(features(x), y, weight)
    batches = Shuffled(examples, size, order.seed, order.first)
    check_whole(signature, manifest.signatures[signature], batches.rows)
    return Feed(batches, signature)


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


def check_validation(judged: Examples | None, metrics: Metrics, manifest: Manifest) -> None:
    """Raise UsageError where validation rows do not fit the program, or metrics have none to be computed from."""
    if judged is not None:
        check_whole("evaluate", manifest.signatures["evaluate"], judged.rows)
    elif metrics is not None:
        raise UsageError(
            "metrics are computed after each epoch on validation rows: pass validation=(x, y) as well", page="sessions"
        )
    measures(metrics, manifest, judged)


def examples_for(signature: str, manifest: Manifest, x: Any, y: Any, weight: Any) -> Examples:
    """Return the checked rows for a signature. Raise UsageError where there is none, or the rows are not its."""
    if signature not in manifest.signatures:
        raise UsageError(
            f"this program has no signature {signature!r}: build it with signatures=(..., {signature!r}), "
            f"on the command line --signatures ...,{signature}",
            page="sessions",
        )
    taken = manifest.signatures[signature]
    if not manifest.by_length(signature):
        return check_targets(check_examples(taken, x, y, weight), manifest)
    longest = manifest.lengths[-1]
    rows = check_targets(check_rows(taken, x, y, weight, longest), manifest)
    return of_tokens(manifest, rows, longest) if taken.taking("target") else rows
