"""The cost of update schemes beside each other, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from converter.models import import_model
from converter.pipeline import build
from converter.sparse import UpdateScheme

#: What is compared when the person names nothing.
DEFAULT_SCHEMES = ("full", "sparse", "last-3", "bias-only", "head")


def compare_schemes(
    model: Any, schemes: Sequence[str | Mapping[str, Any] | UpdateScheme] = DEFAULT_SCHEMES, **options: Any
) -> list[dict[str, Any]]:
    """One row a scheme: its name and `Program.costs`. Nothing is run.

    Args:
        model: as for `converter.build`.
        schemes: names, glob rules or UpdateSchemes.
        **options: as for `converter.build` (loss, optimizer, batch, micro_batch, target, state).

    Raises:
        UsageError, UnsupportedError, NumericError: as `converter.build`.
    """
    batch = options.setdefault("batch", 8)
    # For a budget each scheme may come to another micro-batch, and is imported for it.
    source = model if options.get("memory_budget") else import_model(model, options.get("micro_batch") or batch)
    programs = [build(source, update=scheme, check=False, **options) for scheme in schemes]
    return [{"scheme": program.manifest.update.scheme, **program.costs} for program in programs]
