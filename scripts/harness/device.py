"""The device protocol: all that the harness asks of a phone, a board or this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

#: Android's thermal statuses, in the order of their numbers.
THERMAL = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")

JOB_FORMAT: Literal["pocketune-job/1"] = "pocketune-job/1"
RESULT_FORMAT: Literal["pocketune-result/1"] = "pocketune-result/1"

Kind = Literal["adb", "local", "local-android", "gpu", "hexagon-emulated", "web", "ssh"]


@dataclass(frozen=True)
class Facts:
    """What does not change about a device; None is not known.

    Attributes:
        name: the serial or the host.
        fingerprint: the system's build.
        sdk: Android's API level.
        abis: what its processor runs, best first.
        app: SHA-256 of the installed app; None where no app runs the jobs.
    """

    kind: Kind
    name: str
    model: str
    manufacturer: str | None = None
    soc: str | None = None
    fingerprint: str | None = None
    sdk: int | None = None
    abis: tuple[str, ...] = ()
    cores: int | None = None
    memory_bytes: int | None = None
    is_emulator: bool = False
    app: str | None = None


@dataclass(frozen=True)
class Conditions:
    """What changes; None is not known there.

    Attributes:
        thermal: index in THERMAL.
        celsius: of the battery; of the hottest sensor where there is none.
        load: runnable processes per core over the last minute.
        free_bytes: for files.
        available_bytes: of memory.
        mhz: the clock of each core now.
    """

    thermal: int | None = None
    celsius: float | None = None
    battery_percent: int | None = None
    is_charging: bool | None = None
    power_saver: bool | None = None
    screen_on: bool | None = None
    load: float | None = None
    free_bytes: int | None = None
    available_bytes: int | None = None
    mhz: tuple[int, ...] = ()


@dataclass(frozen=True)
class Job:
    """What runs in one start of the app; the fields are the app's contract (docs/harness.md).

    Attributes:
        id: names the files of the result.
        program: path of the program on the device.
        batches: path of its data on the device.
        steps: of each repeat.
        repeats: each begins from the built state.
    """

    id: str
    program: str
    batches: str
    steps: int
    learning_rate: float
    threads: int = 1
    accelerator: str = "cpu"
    repeats: int = 1
    format: Literal["pocketune-job/1"] = JOB_FORMAT


@dataclass(frozen=True)
class Progress:
    """How far a job is.

    Attributes:
        state: `gone` means that its process ended and left no result.
        bytes: of its log so far; one that grows is alive.
    """

    state: Literal["running", "finished", "gone"]
    bytes: int


#: What a job leaves: its log, the state after the first repeat, and last of all the result.
LOG, STATE, RESULT = "jsonl", "state", "result.json"


class Device(Protocol):
    """A device. Every method raises a Fault when the device fails; none waits without a limit."""

    @property
    def name(self) -> str:
        """The serial or the host, as the user gave it."""
        ...

    @property
    def poll_seconds(self) -> float:
        """How often asking for progress does not disturb the job."""
        ...

    def facts(self) -> Facts:
        """Return what does not change."""
        ...

    def conditions(self) -> Conditions:
        """Return what changes."""
        ...

    def prepare(self) -> None:
        """Makes the device ready for jobs: it is awake, and what runs jobs is there."""
        ...

    def push(self, file: Path) -> str:
        """Sends a file unless the same bytes are there already; its content is verified. Returns the path there."""
        ...

    def start(self, job: Job) -> None:
        """Starts a job; whatever ran before is ended."""
        ...

    def poll(self, job: Job) -> Progress:
        """Return how far the job is."""
        ...

    def pull(self, job: Job, part: str, into: Path) -> Path:
        """Fetches a file of the job's result (LOG, STATE, RESULT) into a folder."""
        ...

    def stop(self) -> None:
        """Ends what was started, if it still runs."""
        ...

    def forget(self, job: Job) -> None:
        """Removes the job's files there."""
        ...

    def said(self) -> str:
        """Return what the runtime logged since the last job started; empty when nothing."""
        ...

    def last_words(self) -> str:
        """Return what the device's log says about the end of the last job's process; empty when nothing."""
        ...

    def recover(self) -> None:
        """After a fault: connects again and waits until the device answers."""
        ...

    def clean(self) -> None:
        """Removes all that the harness ever put there."""
        ...
