"""Keys of a target's table: those that it takes from the one that it is `like`, and what is wrong with them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from math import inf
from typing import Any

from converter.support.errors import nearest


def whole(said: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    """Return a table, with what it does not say taken from the one that it is `like`.

    Raises:
        ValueError: it is like no target of ours.
    """
    table = dict(said)
    if (other := table.pop("like", None)) is None:
        return table
    if other not in known:
        raise ValueError(f"like: unknown target {other!r}.{nearest(str(other), known)} Known: {', '.join(known)}")
    if "name" not in table:
        raise ValueError("name is missing")
    like = whole(tomllib.loads(known[other]), known)
    return like | {key: {**like.get(key, {}), **v} if isinstance(v, dict) else v for key, v in table.items()}


def differences(complete: Mapping[str, Any], table: Mapping[str, Any], where: str) -> list[str]:
    """Return what keeps a table from being a complete one."""
    wrong = [f"{where}{key} is missing" for key in complete if key not in table]
    wrong += [f"{where}{key} is unknown" for key in table if key not in complete]
    for key in complete.keys() & table.keys():
        like, value = complete[key], table[key]
        if isinstance(like, dict):
            wrong += differences(like, value, f"{key}.") if isinstance(value, dict) else [f"{where}{key} is no table"]
        elif isinstance(like, str):
            wrong += [] if isinstance(value, str) and value else [f"{where}{key} must be a text"]
        elif isinstance(value, bool) or not isinstance(value, int if isinstance(like, int) else int | float):
            wrong.append(f"{where}{key} must be a number, not {value!r}")
        elif not 0 < value < inf:
            wrong.append(f"{where}{key} must be positive, not {value!r}")
    return sorted(wrong)
