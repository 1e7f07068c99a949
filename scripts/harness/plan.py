"""The plan of a bench: programs × accelerators × threads × batch sizes, from a TOML file."""

from __future__ import annotations

import hashlib
import json
import random
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path

from converter.program.file import read_program
from converter.program.manifest import Manifest
from converter.support.errors import UsageError, nearest
from converter.support.records import decode
from scripts.harness.batches import batches_from, random_batches
from scripts.harness.device import Job
from scripts.harness.devices.transport import sha256_of


@dataclass(frozen=True)
class Cooling:
    """When the next job may begin.

    Attributes:
        celsius: how much warmer than at the start the battery may be.
        seconds: how long to wait for that at most.
        tries: how often a job is repeated in which the thermal status rose.
    """

    celsius: float = 1.0
    seconds: float = 300.0
    tries: int = 3


@dataclass(frozen=True)
class Tolerance:
    """How far a device may be from the host after the steps of the check.

    Attributes:
        loss: relative, of every step's loss.
        update: of each trained tensor, the distance in terms of how far the host moved it (Euclidean).
    """

    loss: float = 1e-3
    update: float = 0.02


@dataclass(frozen=True)
class Plan:
    """What the TOML file holds; every field but `programs` has a default.

    Attributes:
        programs: paths beside the plan, or in each build's folder; `{batch}` in one stands for each of batch_sizes,
            `{micro_batch}` for each of micro_batch_sizes that divides the batch.
        builds: name -> folder, to compare builds of the same programs: their jobs take turns (ABBA).
        rounds: how many jobs there are of each variant, spread over the whole run.
        repeats: trainings in one job, each from the built state.
        steps: of each training, the first `warmup` not counted.
        data: an .npz of the user's; otherwise data made from `seed`.
        check_steps: the steps whose numbers are compared with the host's before anything is timed.
        stall_seconds: a job whose log does not grow for so long has failed.
    """

    programs: tuple[str, ...]
    builds: dict[str, str] = field(default_factory=lambda: {"": "."})
    accelerators: tuple[str, ...] = ("cpu",)
    threads: tuple[int, ...] = (1,)
    batch_sizes: tuple[int, ...] = ()
    micro_batch_sizes: tuple[int, ...] = ()
    rounds: int = 6
    repeats: int = 1
    steps: int = 30
    warmup: int = 5
    learning_rate: float = 0.01
    seed: int = 0
    data: str | None = None
    check_steps: int = 5
    stall_seconds: float = 120.0
    cooling: Cooling = field(default_factory=Cooling)
    tolerance: Tolerance = field(default_factory=Tolerance)


ACCELERATORS = ("cpu", "gpu", "npu")

#: Fields of a plan that change no number.
PATIENCE = ("rounds", "stall_seconds", "cooling")


@dataclass(frozen=True)
class Variant:
    """One thing to measure, as it stands in result files.

    Attributes:
        micro_batch: rows of one call; the batch where a step is one call.
    """

    build: str
    program: str
    sha256: str
    batch: int
    micro_batch: int
    accelerator: str
    threads: int

    @property
    def key(self) -> str:
        """Names what is measured, in all builds: two files are compared by it."""
        unit = "thread" if self.threads == 1 else "threads"
        rows = f"{self.batch}" if self.micro_batch == self.batch else f"{self.batch} by {self.micro_batch}"
        return f"{self.program} batch {rows} {self.accelerator} {self.threads} {unit}"

    @property
    def title(self) -> str:
        """The key, and the build where there are several."""
        return f"{self.build}: {self.key}" if self.build else self.key


@dataclass(frozen=True)
class Subject:
    """A variant with its file here."""

    variant: Variant
    file: Path

    @cached_property
    def manifest(self) -> Manifest:
        """What the program says about itself."""
        return read_program(self.file).manifest

    def batches(self, plan: Plan, folder: Path) -> bytes:
        """Return the data of its steps. Raises UsageError when the user's file is not what it should be."""
        if plan.data is not None:
            return batches_from(self.manifest, folder / plan.data, plan.steps)
        return random_batches(self.manifest, plan.steps, plan.seed)


@dataclass(frozen=True)
class Setup:
    """How a job trains, as it stands in result files: only times of the same setup are compared.

    Attributes:
        data: SHA-256 of the user's file, or the seed.
    """

    steps: int
    repeats: int
    warmup: int
    learning_rate: float
    data: str


@dataclass(frozen=True)
class Bench:
    """A plan with its programs found and checked."""

    name: str
    folder: Path
    plan: Plan
    subjects: tuple[Subject, ...]

    @property
    def hash(self) -> str:
        """Changes with anything that changes the numbers: a run is only resumed with the same.

        How many rounds there are and how long to wait may change: more rounds are what a WARN asks for.
        """
        plan = {name: value for name, value in asdict(self.plan).items() if name not in PATIENCE}
        content = {"plan": plan, "data": self.setup.data, "subjects": [asdict(s.variant) for s in self.subjects]}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def setup(self) -> Setup:
        """How its jobs train."""
        plan = self.plan
        data = f"seed {plan.seed}" if plan.data is None else sha256_of(self.folder / plan.data)
        return Setup(plan.steps, plan.repeats, plan.warmup, plan.learning_rate, data)

    def check_files(self, subject: Subject) -> None:
        """Raises UsageError when the program or the user's data is another than when the plan was read."""
        expected = {subject.file: subject.variant.sha256}
        if self.plan.data is not None:
            expected[self.folder / self.plan.data] = self.setup.data
        for file, digest in expected.items():
            if not file.is_file() or sha256_of(file) != digest:
                raise UsageError(f"{file} has changed since the run began: put it back and give --resume")

    def order(self) -> list[tuple[int, Subject]]:
        """Rounds and subjects, forth and back: what drifts slowly meets all alike.

        Chance decides for each two rounds which comes first (ABBA or BAAB): what comes and goes by itself must not keep
        in step with them.
        """
        order = []
        for pair in range(0, self.plan.rounds, 2):
            forth = list(self.subjects)
            if random.Random(f"{self.hash} {pair}").random() < 0.5:
                forth.reverse()
            both = [(pair, s) for s in forth] + [(pair + 1, s) for s in reversed(forth)]
            order += [(round, subject) for round, subject in both if round < self.plan.rounds]
        return order

    def job(self, subject: Subject, id: str, program: str, batches: str, steps: int, repeats: int) -> Job:
        """Return a job for a subject whose files lie on the device."""
        variant = subject.variant
        rate = self.plan.learning_rate
        return Job(id, program, batches, steps, rate, variant.threads, variant.accelerator, repeats)


def read_plan(path: Path) -> Bench:
    """Return a plan and the programs that it names.

    Raises:
        UsageError: the file or a program is missing or not what it should be; the error names the field.
    """
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: no TOML: {error}") from None
    plan = decode(Plan, data, str(path))
    check_plan(plan, f"{path}.")
    if plan.data is not None and not (path.parent / plan.data).is_file():
        raise UsageError(f"{path}.data: there is no file {path.parent / plan.data}")
    subjects = []
    for name, rows in (named for program in plan.programs for named in _named(program, plan)):
        for accelerator, threads in product(plan.accelerators, plan.threads):
            for build, folder in plan.builds.items():
                subjects.append(subject_of(path.parent / folder / name, accelerator, threads, build, rows))
    names = [(s.variant.build, s.variant.key) for s in subjects]
    if twice := next((key for build, key in names if names.count((build, key)) > 1), None):
        raise UsageError(f"{path}.programs: two of them would stand in the results as {twice!r}: rename one file")
    for subject in subjects:
        try:
            subject.batches(plan, path.parent)
        except UsageError as error:
            raise UsageError(f"{subject.file.name}: {error}") from None
    return Bench(path.stem, path.parent, plan, tuple(subjects))


def _named(program: str, plan: Plan) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the files that a name with placeholders stands for, each with what the plan says of its rows."""
    sizes = {"batch": plan.batch_sizes, "micro_batch": plan.micro_batch_sizes}
    asked = {name: each for name, each in sizes.items() if f"{{{name}}}" in program}
    for chosen in product(*asked.values()):
        rows = dict(zip(asked, chosen, strict=True))
        if rows.get("batch", 0) % rows.get("micro_batch", 1) == 0:
            name = program
            for placeholder, size in rows.items():
                name = name.replace(f"{{{placeholder}}}", str(size))
            yield name, rows


def subject_of(
    file: Path, accelerator: str, threads: int, build: str = "", rows: Mapping[str, int] | None = None
) -> Subject:
    """Return a program file to be run in one way.

    Args:
        file: the program.
        accelerator: what shall run it.
        threads: on the CPU.
        build: the name of its build.
        rows: what `batch` and `micro_batch` of the program have to be.

    Raises:
        UsageError: it is no program, or of another batch size.
    """
    manifest = read_program(file).manifest
    for name, expected in (rows or {}).items():
        if (found := getattr(manifest, name)) != expected:
            raise UsageError(f"{file}: its {name} is {found}, and the plan says {expected}")
    digest = sha256_of(file)
    return Subject(Variant(build, file.stem, digest, manifest.batch, manifest.micro_batch, accelerator, threads), file)


def check_plan(plan: Plan, where: str) -> None:
    """Raises UsageError for values that no plan can have; their names come after `where`."""
    limits: dict[str, tuple[float, float, float]] = {
        "rounds": (plan.rounds, 1, 1000),
        "repeats": (plan.repeats, 1, 1000),
        "steps": (plan.steps, 2, 100_000),
        "warmup": (plan.warmup, 0, plan.steps - 1),
        "check_steps": (plan.check_steps, 1, plan.steps),
        "learning_rate": (plan.learning_rate, 0, 1e6),
        "seed": (plan.seed, 0, 2**63 - 1),
        "stall_seconds": (plan.stall_seconds, 0.1, 86_400),
        "cooling.celsius": (plan.cooling.celsius, 0, 100),
        "cooling.seconds": (plan.cooling.seconds, 0, 86_400),
        "cooling.tries": (plan.cooling.tries, 1, 100),
        "tolerance.loss": (plan.tolerance.loss, 0, 1),
        "tolerance.update": (plan.tolerance.update, 0, 1),
        **{f"threads[{i}]": (t, 1, 64) for i, t in enumerate(plan.threads)},
        **{f"micro_batch_sizes[{i}]": (n, 1, 1 << 20) for i, n in enumerate(plan.micro_batch_sizes)},
    }
    for name, (value, least, most) in limits.items():
        if not least <= value <= most:
            raise UsageError(f"{where}{name}: must be from {least:,} to {most:,}, got {value}")
    for name in ("programs", "accelerators", "threads", "builds"):
        if not getattr(plan, name):
            raise UsageError(f"{where}{name}: is empty")
    for name in ("programs", "accelerators", "threads", "batch_sizes", "micro_batch_sizes"):
        values = getattr(plan, name)
        if twice := next((value for value in values if values.count(value) > 1), None):
            raise UsageError(f"{where}{name}: {twice!r} is there twice")
    for name in plan.builds:
        if not re.fullmatch(r"[\w.-]*", name):
            raise UsageError(f"{where}builds: {name!r} becomes part of a file's name: letters, digits, . - and _ only")
    if any(plan.builds) and (absolute := [p for p in plan.programs if Path(p).is_absolute()]):
        raise UsageError(f"{where}programs: {absolute[0]} is the same in every build: give its path in their folders")
    for name in plan.accelerators:
        if name not in ACCELERATORS:
            known = ", ".join(map(repr, ACCELERATORS))
            raise UsageError(f"{where}accelerators: {name!r} is none of {known}.{nearest(name, ACCELERATORS)}")
    for name in ("batch", "micro_batch"):
        if any(f"{{{name}}}" in p for p in plan.programs) != bool(getattr(plan, f"{name}_sizes")):
            raise UsageError(f"{where}{name}_sizes: these and a {{{name}}} in programs belong together")
