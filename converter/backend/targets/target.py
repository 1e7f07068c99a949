"""A target: runtime, version and processor, with what each form of an operator costs there.

The form of an operator depends on all three: a trainable 3x3 convolution costs 1.2 times its frozen twin in the kernels
of an arm64 phone and 5 times on x86-64, where splitting it into matrix products wins. The tables beside this file hold
measured costs; `scripts/bench/forms.py` measures them again, converter/tools/measure says what is measured.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from importlib.metadata import EntryPoint
from math import ceil, inf, log2
from pathlib import Path
from typing import Any

from converter.backend.targets.keys import differences, whole
from converter.ir import TensorType
from converter.support.errors import UsageError, nearest
from converter.support.files import check_regular
from converter.support.plugins import load, plugins, said_of

#: Entry points of other distributions: the texts of tables.
GROUP = "pocketune.targets"
#: The depth of the products that `per_mac` is of.
_DEEP = 64
#: The share of `conv.runtime` that multiplies, in the shapes that it was measured on; the rest gathers.
_MULTIPLIED = 0.8
#: What copying an element into a patch costs, beside packing it.
_COPIED = 0.35
#: Rows of a product that the quickest kernels compute at once, about.
_AT_ONCE = 6
#: The share of a core's own cache that what a product meets at once may take, and what fetching it again costs at the
#: most, of the product (docs/decisions/deep-products.md).
_ROOM, _MOST_FETCHED = 0.5, 2.0
#: How a program keeps its state, those first that ask most of an engine.
STATES = ("variables", "stateless", "split")


@dataclass(frozen=True)
class Target:
    """One table.

    Attributes:
        name: as the user writes it, e.g. `litert-2/x86-64`.
        description: runtime, version, processor, and where the figures come from.
        advice: what those who build for it are told; empty where there is nothing to say.
        unit: of its costs: `ns`, `instructions`, or empty where they only compare with each other.
        per_mac: cost of one multiply-accumulate by form, in the table's own `unit`; of a product, where it is 64 deep.
        per_byte: cost of one byte read or written by form, in the same unit, while what is touched stays in the cache.
        per_byte_beyond: the same where it does not.
        per_operator: cost of dispatching one operator, in the same unit.
        lanes: columns that the kernel of a matrix product computes at once.
        rows: rows that it computes at once.
        depth: what beginning a tile of these, and each tap of a filter in it, costs, in multiply-accumulates of each
            output.
        run: cost of beginning to copy, or to filter, the channels of one pixel, in the table's own `unit`.
        cache_bytes: what one core has to itself (its second level).
        shared_cache_bytes: what it has of all caches, its own and those that cores share, at least `cache_bytes`: where
            more is in use, bytes come from the memory.
        forced: names of forms that are taken wherever they are possible, whatever they cost.
        stores_once: whether forms for which a program holds more than the weight as it is are not taken.
        limits: the largest rank of an operator's operands and results in a runtime that takes less than the newest, by
            `CODE`, `CODE.dtype`, `CODE.broadcast` (operands of different shapes) or `CODE.dtype.broadcast`; `*` stands
            for all builtins that have no entry of this kind.
        avoids: names of patterns of operators that the engine refuses or computes wrongly; see
            `converter.backend.legalize`.
        state: how a program keeps its state there if nothing else is asked for. An engine takes what asks less, too.
        accelerator: whether it tells of an engine of a GPU or NPU, which may compute in float16 and keeps no variables.
        records: of a runtime that is given an arena, the bytes of what it keeps there of tensors and operators, on a
            `board` and in its `wheel`; see `converter.backend.schedule.micro_arena`. Empty: the arena is TFLite's.
        weights: forms of frozen weights besides float32, as `frozen` calls them, that the engine reads right; empty:
            all on a CPU whose runtime takes all that the newest does, and elsewhere int8.
    """

    name: str
    description: str
    advice: str = field(default="", kw_only=True)
    unit: str = field(default="", kw_only=True)
    per_mac: Mapping[str, float]
    per_byte: Mapping[str, float]
    per_byte_beyond: Mapping[str, float]
    per_operator: float
    lanes: int
    rows: int
    depth: float
    run: float
    cache_bytes: int
    shared_cache_bytes: int
    forced: frozenset[str] = frozenset()
    stores_once: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)
    avoids: Sequence[str] = ()
    state: str = "variables"
    accelerator: bool = False
    records: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    weights: Sequence[str] = ()

    @property
    def is_newest(self) -> bool:
        """Whether the runtime takes all that the newest does."""
        return not self.limits

    def takes(self, code: str, operands: Sequence[TensorType], results: Sequence[TensorType] = ()) -> bool:
        """Return whether the runtime has a kernel of a builtin for such operands and results."""
        if not self.limits or not (operands or results):
            return True
        rank = max(t.rank for t in (*operands, *results))
        kinds = ["", *(f".{name}" for name in {t.dtype.name for t in (*operands, *results)})]
        if len({t.shape for t in operands}) > 1:
            kinds += [f"{kind}.broadcast" for kind in kinds]
        return all(rank <= self._limit(code, kind, rank) for kind in kinds)

    def _limit(self, code: str, kind: str, default: float) -> float:
        return self.limits.get(code + kind, self.limits.get(f"*{kind}", default))

    def storing_once(self) -> Target:
        """Return the same, without forms for which a program holds more than the weight as it is."""
        return replace(self, stores_once=True)

    def keeps(self, state: str) -> bool:
        """Return whether its engine runs programs that keep their state so."""
        return STATES.index(state) >= STATES.index(self.state)

    def reads(self, frozen: str) -> bool:
        """Return whether its engine reads frozen weights of a form right, as `frozen` calls it."""
        others = frozen in self.weights if self.weights else frozen == "int8" or (self.is_newest and self.is_cpu)
        return frozen == "float32" or others

    @property
    def is_cpu(self) -> bool:
        """Whether the table tells of a CPU, which computes in float32."""
        return not self.accelerator

    @property
    def reads_as_stored(self) -> bool:
        """Whether a gradient reads a frozen weight as the forward pass does, by a product that is as quick."""
        quick = self.per_mac["batch_matmul"] < 1.1 * self.per_mac["fully_connected.constant"]
        return self.is_cpu and not self.is_micro and quick

    @property
    def is_micro(self) -> bool:
        """Whether its runtime is given an arena: each operator takes memory there, and each RESHAPE is a copy."""
        return bool(self.records)

    def repeats(self, code: str) -> bool:
        """Return whether the table has a limit of a builtin, elementwise then, for operands of different shapes."""
        return any(key.startswith(f"{code}.") and key.endswith(".broadcast") for key in self.limits)

    def macs(self, form: str, count: float) -> float:
        """Return the cost of an operator of `count` multiply-accumulates in a form."""
        return self.per_mac[form] * count + self.per_operator

    def product(
        self, m: int, k: int, n: int, constant: bool = False, touched: int | None = None, times: int = 1
    ) -> float:
        """Return the cost of a matrix product [m, k] x [k, n]; its kernels compute whole tiles of rows and columns.

        Args:
            m: rows of the left operand.
            k: columns of the left operand.
            n: columns of the right operand.
            constant: the right operand is known at compile time; one that is not is packed at each run.
            touched: see `moved`; of the packing.
            times: how many left operands of m rows are multiplied, each of which begins a tile.
        """
        if constant:
            return self.tiles("fully_connected.constant", m, k, n, times)
        packed = 4 * k * self.whole_lanes(n)
        cost = self.tiles("batch_matmul", m, k, n, times) + self.moved("packed", packed, touched)
        if 4 * k * self.lanes > self.cache_bytes:  # what all rows meet of a column does not stay in the cache
            far = self.per_byte_beyond["delegated"] - self.per_byte["delegated"]
            cost += times * m / _AT_ONCE * packed * far
        return cost

    def depth_blocks(self, k: int) -> int:
        """Into how many blocks a product k deep is better cut, for what its kernel meets at once to stay in the cache.

        The kernel goes down the whole depth of a few rows and columns, and meets the columns again with the next rows.
        """
        room = _ROOM * self.cache_bytes
        return 1 if self._contracted_at_once(k) <= room else ceil(2 * self._contracted_at_once(k) / room)

    def fetching(self, m: int, k: int) -> float:
        """Return how many times longer a product of m rows and many columns takes if its depth k outgrows the cache.

        Of few columns, as those of a filter's gradient, it takes hardly longer.
        """
        over = max(self._contracted_at_once(k) / self.cache_bytes - _ROOM, 0)
        return 1 + min(2 * over, _MOST_FETCHED) * max(1 - _AT_ONCE / m, 0)

    def _contracted_at_once(self, k: int) -> int:
        """Return the bytes of rows and columns; 0 on accelerators, whose engines cut for caches of their own."""
        return 4 * k * (self.lanes + _AT_ONCE) if self.is_cpu else 0

    def tiles(self, form: str, m: int, k: int, n: int, times: int = 1, taps: int = 1) -> float:
        """Return the cost of m rows and n columns of products `taps` times k deep, `times` over, in whole tiles."""
        macs = times * self.tiled(m) * self.whole_lanes(n) * (taps * (k + self.depth) + self.depth)
        return self.macs(form, macs * _DEEP / (_DEEP + 2 * self.depth))

    def gathered(self, macs: int, patches: int, results: int, runs: int) -> float:
        """Return the cost of a convolution whose filter is not constant: patches are gathered, packed and multiplied.

        Args:
            macs: multiply-accumulates.
            patches: elements of all patches.
            results: elements of the result.
            runs: pieces of the image that are copied into patches; 0 where it is read as it is.
        """
        moved = 4 * (patches * (1 + _COPIED * bool(runs)) + 2 * results)
        return self.macs("conv.runtime", _MULTIPLIED * macs) + self.moved("packed", round(moved)) + runs * self.run

    def tiled(self, m: int) -> int:
        """Return rows that the kernel of a matrix product computes for m."""
        return -(-m // self.rows) * self.rows

    def whole_lanes(self, n: int) -> int:
        """Columns that it computes for n."""
        return -(-n // self.lanes) * self.lanes

    def reshaped(self, nbytes: int) -> float:
        """Cost of a RESHAPE: free between two of XNNPACK's operators, a copy at a border or where others read, too.

        Because a copy also lies in memory, it counts twice: it is not taken for next to nothing.
        """
        return 2 * self.moved("delegated", 2 * nbytes)

    def moved(self, form: str, nbytes: int, touched: int | None = None) -> float:
        """Return the cost of reading and writing `nbytes` by elementwise operators (`delegated`), or the form named.

        Args:
            form: the kind of movement.
            nbytes: read and written.
            touched: bytes that are in use around it, which stay in the cache or do not; None: these alone.
        """
        if not nbytes:
            return 0.0
        near, beyond = self.per_byte[form], self.per_byte_beyond[form]
        return (near + self._far(nbytes if touched is None else touched) * (beyond - near)) * nbytes + self.per_operator

    def _far(self, touched: int) -> float:
        """Return how far from a core's own cache so many bytes in use lie: 0 in it, 1 beyond those that cores share."""
        own, shared = self.cache_bytes, self.shared_cache_bytes
        return log2(touched / own) / log2(shared / own) if own < touched < shared else float(touched > own)


def tables() -> dict[str, str]:
    """Return the text of each table by the name of its target; some are like another one where they say nothing."""
    texts = [
        file.read_text()
        for file in resources.files("converter.backend.targets").iterdir()
        if file.name.endswith(".toml")
    ]
    return {tomllib.loads(text)["name"]: text for text in sorted(texts)}


def unit_of(name: object) -> str:
    """Return the unit of costs by a target's table, `ns` or `instructions`; empty where it has none or is not known."""
    try:
        return target(name).unit
    except UsageError:
        return ""


def target(name: object) -> Target:
    """Return a target by name, or by the path of a table of one's own (`.toml`, as those beside this file).

    Several, separated by commas, are one whose programs run on all of them.

    Raises:
        UsageError: an unknown name, or a table that is none.
    """
    if isinstance(name, Target):
        return name
    known = tables()
    if not isinstance(name, str):
        described = " What y is goes into `y`." if hasattr(name, "shape") else ""
        raise UsageError(
            f"target must be a name, not {name!r}.{described} Known: {', '.join(_names(known))}.", page="targets"
        )
    if "," in name:
        return _joined([target(part.strip()) for part in name.split(",")])
    if name.endswith(".toml"):
        return _read(Path(name), known)
    if name in known:
        return Target(**whole(tomllib.loads(known[name]), known))
    if name in plugins(GROUP):
        return _plugin(plugins(GROUP)[name], known)
    names = _names(known)
    raise UsageError(f"unknown target {name!r}.{nearest(name, names)} Known: {', '.join(names)}.", page="targets")


def _names(known: Mapping[str, str]) -> list[str]:
    """Return the names of all targets, those of other distributions too."""
    return sorted({*known, *plugins(GROUP)})


def _plugin(point: EntryPoint, known: Mapping[str, str]) -> Target:
    """Return a target of another distribution, which may be like one of ours.

    Raises:
        UsageError: its table cannot be loaded, or is none.
    """
    text: str = load(point, str)
    try:
        return _extended({**tomllib.loads(text), "name": point.name}, known)
    except (TypeError, ValueError) as error:  # text that is no TOML is a ValueError
        raise UsageError(f"{said_of(point)} is no table of a target: {error}", page="targets") from error


def _extended(said: Mapping[str, Any], known: Mapping[str, str]) -> Target:
    """Return a target from elsewhere that may be like one of ours. Raises ValueError or TypeError: it is none."""
    table, complete = whole(said, known), whole(tomllib.loads(known["litert-2"]), known)
    if wrong := differences(complete, {key: value for key, value in table.items() if key in complete}, ""):
        raise ValueError("; ".join(wrong))
    return Target(**table)


def _joined(targets: Sequence[Target]) -> Target:
    """Return what runs on all of them: whatever one avoids, the smallest limits, the dearest costs."""

    def dearest(name: str) -> dict[str, float]:
        figures: list[Mapping[str, float]] = [getattr(t, name) for t in targets]
        common = [form for form in figures[0] if all(form in others for others in figures)]
        return {form: max(others[form] for others in figures) for form in common}

    limits = {key for t in targets for key in t.limits}
    return Target(
        name=",".join(dict.fromkeys(t.name for t in targets)),
        description="; ".join(dict.fromkeys(t.description for t in targets)),
        advice=" ".join(dict.fromkeys(t.advice for t in targets if t.advice)),
        unit=targets[0].unit if len({t.unit for t in targets}) == 1 else "",
        per_mac=dearest("per_mac"),
        per_byte=dearest("per_byte"),
        per_byte_beyond=dearest("per_byte_beyond"),
        per_operator=max(t.per_operator for t in targets),
        lanes=max(t.lanes for t in targets),
        rows=max(t.rows for t in targets),
        depth=max(t.depth for t in targets),
        run=max(t.run for t in targets),
        cache_bytes=min(t.cache_bytes for t in targets),
        shared_cache_bytes=min(t.shared_cache_bytes for t in targets),
        forced=frozenset[str]().union(*(t.forced for t in targets)),
        stores_once=any(t.stores_once for t in targets),
        limits={key: int(min(t._limit(*_parts(key), inf) for t in targets)) for key in sorted(limits)},
        avoids=tuple(dict.fromkeys(name for t in targets for name in t.avoids)),
        state=max((t.state for t in targets), key=STATES.index),
        accelerator=any(t.accelerator for t in targets),
        records=next((t.records for t in targets if t.records), {}),
        weights=_common(targets),
    )


def _common(targets: Sequence[Target]) -> tuple[str, ...]:
    """Return forms of frozen weights that all of them read; empty where the table of none lists any."""
    listed = dict.fromkeys(form for t in targets for form in t.weights)
    return tuple(form for form in listed if all(t.reads(form) for t in targets)) or ("float32",) * bool(listed)


def _parts(key: str) -> tuple[str, str]:
    """Return the builtin and the rest of a limit's name."""
    code, dot, kind = key.partition(".")
    return code, dot + kind


def _read(path: Path, known: Mapping[str, str]) -> Target:
    """Return a table of the user's own: it is like one of ours, or gives whatever the one gives that it resembles."""
    try:
        check_regular(path)
        table = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"the target {path} cannot be read: {error}", page="targets") from None
    if "like" in table:
        try:
            return _extended(table, known)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{path} is no table of a target: {error}", page="targets") from None
    complete = [read for read in map(tomllib.loads, known.values()) if "like" not in read]
    wrong = min([differences(like, table, "") for like in complete], key=len)
    if not wrong and table["shared_cache_bytes"] < table["cache_bytes"]:
        wrong = ["shared_cache_bytes is less than cache_bytes, which is a part of it"]
    if wrong:
        raise UsageError(
            f"{path} is no table of a target: {'; '.join(wrong)}. `scripts/device measure FILE` writes one.",
            page="targets",
        )
    return Target(**table)
