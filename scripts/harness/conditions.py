"""Conditions under which numbers mean little: each has a name, and blocks a run unless the user allows it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from converter.support.errors import UsageError, nearest
from scripts.harness.device import THERMAL, Conditions, Facts
from scripts.harness.faults import NotReady, WrongDevice

LEAST_BATTERY = 25
LEAST_FREE = 200 << 20
LEAST_MEMORY = 300 << 20
MOST_LOAD = 0.5
LEAST_SDK = 26
ABIS = ("arm64-v8a", "armeabi-v7a", "x86_64")

#: What each condition means, for `--help` and the documentation.
NAMES = {
    "BATTERY": f"charge below {LEAST_BATTERY} %",
    "THERMAL": "the system already slows down for heat, or does so in a run",
    "LOW_POWER": "power saving is on",
    "SCREEN": "the screen is off: the app would not be in the foreground",
    "EMULATOR": "no real silicon",
    "SPACE": f"less than {LEAST_FREE >> 20} MiB of storage free",
    "MEMORY": f"less than {LEAST_MEMORY >> 20} MiB of memory available",
    "BUSY": f"other programs use more than {MOST_LOAD:.0%} of the processor",
}


@dataclass(frozen=True)
class Concern:
    """A condition that holds, and its figures."""

    name: str
    sentence: str


def concerns(facts: Facts, now: Conditions) -> list[Concern]:
    """Return the conditions that hold. What is not known about a device raises none."""
    found = []

    def note(holds: bool, name: str, sentence: str) -> None:
        if holds:
            found.append(Concern(name, sentence))

    note(facts.is_emulator, "EMULATOR", "the processor is emulated")
    if now.battery_percent is not None:
        note(now.battery_percent < LEAST_BATTERY, "BATTERY", f"the battery is at {now.battery_percent} %")
    if now.thermal is not None:
        note(now.thermal > 0, "THERMAL", f"the thermal status is {THERMAL[now.thermal]}")
    note(bool(now.power_saver), "LOW_POWER", "power saving is on")
    note(now.screen_on is False, "SCREEN", "the screen is off")
    if now.free_bytes is not None:
        note(now.free_bytes < LEAST_FREE, "SPACE", f"{now.free_bytes >> 20} MiB of storage are free")
    if now.available_bytes is not None:
        note(now.available_bytes < LEAST_MEMORY, "MEMORY", f"{now.available_bytes >> 20} MiB of memory are available")
    if now.load is not None:
        note(now.load > MOST_LOAD, "BUSY", f"{now.load:.1f} processes per core want to run")
    return found


def check_names(allowed: Collection[str]) -> None:
    """Raises UsageError for a condition that does not exist."""
    for name in allowed:
        if name not in NAMES:
            raise UsageError(f"--allow {name}: the conditions are {', '.join(NAMES)}.{nearest(name, NAMES)}")


def spoiled(facts: Facts, now: Conditions, allowed: Collection[str]) -> list[str]:
    """Looks again between jobs, at what the jobs themselves do not cause.

    Returns:
        Names of the conditions that hold by now and are allowed.

    Raises:
        NotReady: one holds that is not allowed; heat has a wait of its own.
    """
    later = [c for c in concerns(facts, now) if c.name in ("BATTERY", "LOW_POWER", "THERMAL")]
    if blocking := [c for c in later if c.name not in allowed and c.name != "THERMAL"]:
        raise NotReady(facts.name, "; ".join(f"{c.sentence} ({c.name})" for c in blocking))
    return [c.name for c in later if c.name in allowed]


def preflight(facts: Facts, now: Conditions, allowed: Collection[str]) -> list[str]:
    """Return names of the conditions that hold and are allowed.

    Raises:
        WrongDevice: the app cannot run there at all.
        NotReady: a condition holds that is not allowed; all of them are named.
    """
    if facts.kind == "adb":
        if facts.abis and not set(facts.abis) & set(ABIS):
            raise WrongDevice(
                facts.name, f"its processor runs {', '.join(facts.abis)}, and the app has {', '.join(ABIS)}"
            )
        if facts.sdk is not None and facts.sdk < LEAST_SDK:
            raise WrongDevice(facts.name, f"it has Android API {facts.sdk}, and the app needs {LEAST_SDK}")
    found = concerns(facts, now)
    if blocking := [c for c in found if c.name not in allowed]:
        raise NotReady(facts.name, "; ".join(f"{c.sentence} ({c.name})" for c in blocking))
    return [c.name for c in found]
