"""Cost comparison of update schemes, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from converter.driver.build import plan
from converter.driver.models import open_model, with_own_augmentation
from converter.driver.option_keywords import options_of
from converter.driver.options import Options
from converter.program.manifest import rows_to_infer
from converter.support.errors import UsageError
from converter.training.schemes import UpdateScheme

#: What is compared when the user names nothing.
DEFAULT_SCHEMES = ("full", "sparse", "last-3", "bias-only", "head")


def compare_schemes(
    model: Any, schemes: Sequence[str | Mapping[str, Any] | UpdateScheme] = DEFAULT_SCHEMES, **options: Any
) -> list[dict[str, Any]]:
    """Return one row a scheme: its name and the figures of `converter.backend.costs.costs`.

    Nothing is run, no program is made.

    Args:
        model: as for `pocketune.build`, or one of shapes alone.
        schemes: names, glob rules or UpdateSchemes; of the usual ones, those that the model allows.
        **options: as for `pocketune.build` (loss, optimizer, batch, micro_batch, target, state, inputs), without
            `update` and `check`.

    Raises:
        UsageError, UnsupportedError, NumericError: as `pocketune.build`.
    """
    asked = options_of("compare_schemes", options, "update", "check")
    opened = open_model(model, asked)
    asked = with_own_augmentation(opened, asked)
    source = import_once(opened, asked)
    rows: list[dict[str, Any]] = []
    refused: list[UsageError] = []
    for scheme in schemes:
        try:
            each = plan(source, replace(asked, update=scheme))
        except UsageError as error:  # as bias-only of a model without biases
            refused.append(error)
            continue
        rows.append({"scheme": each.scheme, **each.costs})
    if refused and (not rows or schemes is not DEFAULT_SCHEMES):
        raise refused[0]
    return rows


def import_once(model: Any, options: Options) -> Any:
    """Return the model for several plans with the same options, unless each needs it for other numbers of rows."""
    opened = open_model(model, options)
    if options.memory_budget or any(map(rows_to_infer, options.signatures)):
        return opened
    return opened.source(options.micro_batch or options.batch)
