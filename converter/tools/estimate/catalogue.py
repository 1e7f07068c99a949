"""Device catalogue: devices by name (`devices.toml`), and the cores in them (`cores.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from converter.support.errors import UsageError, nearest
from converter.support.files import check_regular
from converter.support.records import decode


@dataclass(frozen=True)
class Class:
    """Cores that compute alike.

    Attributes:
        kinds: the cores by name.
        per_cycle: instructions of a training step that one retires in a cycle while its data is in the cache: the
            least and the most.
        gigabytes_per_second: what one moves through memory at the least.
        watts: what the device draws for one at work: the least and the most.
        little: work is moved away from it where the device has others.
        sources: where that is known from.
    """

    kinds: tuple[str, ...]
    per_cycle: tuple[float, ...]
    gigabytes_per_second: float
    watts: tuple[float, ...]
    sources: tuple[str, ...]
    little: bool = False


@dataclass(frozen=True)
class Core:
    """Cores of one kind in a device, and their highest clock."""

    kind: str
    count: int
    ghz: float


@dataclass(frozen=True)
class Device:
    """A phone, a board or a computer.

    Attributes:
        name: as a user writes it.
        title: what it is sold as.
        models: what it calls itself, as patterns; results of the harness are told by that.
        kind: a phone gives an app in the foreground less of its memory than a board a process.
        abi: what its processor runs.
        target: the table of the compiler that is its processor's.
        memory_gib: the smallest version's.
        accelerators: what else could run a step, as `certify --on` calls it; no table has times of these.
        cores: all of them.
        sources: where these facts are from.
    """

    name: str
    title: str
    models: tuple[str, ...]
    kind: Literal["phone", "board", "computer"]
    soc: str
    abi: str
    target: str
    memory_gib: float
    cores: tuple[Core, ...]
    sources: tuple[str, ...]
    accelerators: tuple[str, ...] = ()

    def is_called(self, model: str) -> bool:
        """Return whether it is what calls itself so."""
        return any(fnmatchcase(model.lower(), pattern.lower()) for pattern in self.models)

    @property
    def working(self) -> list[Core]:
        """The cores that get long work: the little ones only where there are no others."""
        return [c for c in self.cores if not class_of(c.kind).little] or list(self.cores)


def class_of(kind: str) -> Class:
    """Return what is known of a kind of core."""
    return _classes()[kind]


def devices() -> dict[str, Device]:
    """Return all devices that are known, by name."""
    found = [decode(Device, table, "devices.toml") for table in _table("devices.toml")["device"]]
    return {one.name: one for one in found}


def device(name: str) -> Device:
    """Return a device by name, or by the path of a `.toml` file with the fields of one.

    Raises:
        UsageError: an unknown name, or a file that is none.
    """
    if name.endswith(".toml"):
        return _read(Path(name))
    known = devices()
    if name not in known:
        raise UsageError(
            f"unknown device {name!r}.{nearest(name.lower(), known)} Known: {', '.join(known)}. For another one write "
            "a file with its cores, --device mine.toml: see docs/estimate.md",
            page="estimates",
        )
    return known[name]


def _read(path: Path) -> Device:
    try:
        check_regular(path)
        table = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"the device {path} cannot be read: {error}", page="estimates") from None
    read: Device = decode(Device, table, str(path))
    check(read, str(path))
    return read


def check(found: Device, where: str) -> None:
    """Raises UsageError for cores that nothing is known of, and figures that no device has."""
    if not found.cores:
        raise UsageError(f"{where}: cores: it has none", page="estimates")
    for core in found.cores:
        if core.kind not in _classes():
            raise UsageError(
                f"{where}: unknown core {core.kind!r}.{nearest(core.kind, _classes())} Known: {', '.join(_classes())}",
                page="estimates",
            )
        if not (0 < core.ghz < 10 and core.count > 0):
            raise UsageError(f"{where}: {core.kind}: {core.count} at {core.ghz:g} GHz cannot be", page="estimates")
    if found.memory_gib <= 0:
        raise UsageError(f"{where}: memory_gib must be above 0, got {found.memory_gib:g}", page="estimates")


@cache
def _classes() -> dict[str, Class]:
    """Return the class of each kind of core."""
    found = [decode(Class, table, "cores.toml") for table in _table("cores.toml")["class"]]
    return {kind: one for one in found for kind in one.kinds}


def _table(name: str) -> Mapping[str, Any]:
    return tomllib.loads((resources.files("converter.tools.estimate") / name).read_text())
