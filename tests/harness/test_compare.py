"""Verdicts: a planted slowdown is found, the same twice raises no alarm; and what the table and the page say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from converter.support.errors import NumericError, UsageError
from scripts.harness.cli import app
from scripts.harness.compare import Comparison, chance_of, compare, differences, judge
from scripts.harness.device import Conditions, Facts, Kind
from scripts.harness.log import Checked, FaultLine, Log, Result, ResultFile, Run, read_results
from scripts.harness.plan import Setup, Variant
from scripts.harness.report import render
from scripts.harness.tables import comparison_table, device_row, results_table, summarize

VARIANT = Variant("", "digits", "0" * 64, 8, 8, "cpu", 1)
FACTS = Facts("adb", "SERIAL", "Phone", abis=("arm64-v8a",))
ROUNDS, STEPS = 12, 30

Times = Callable[[np.random.Generator, int], np.ndarray]


def file_of(times: list[np.ndarray], session: str = "s", model: str = "Phone") -> ResultFile:
    """A result file with a job for each array of step times."""
    cool = Conditions(thermal=0, celsius=28.0, battery_percent=80)
    run = Run(
        session,
        "plan",
        "0" * 16,
        "",
        replace(FACTS, model=model),
        cool,
        (),
        Setup(len(times[0]) if times else STEPS, 1, 5, 0.01, "seed 0"),
        None,
        None,
        "2026-01-01T00:00:00",
    )
    results = [
        Result(
            id=f"job-{i}",
            session=session,
            variant=VARIANT,
            round=i,
            attempt=0,
            time=f"2026-01-01T00:00:{i:02}",
            seconds=1.0,
            runtime="tflite 2.16.1",
            asked="cpu",
            runs="cpu",
            detail="XNNPACK",
            ms=(tuple(map(float, ms)),),
            cpu_ms=(tuple(map(float, ms)),),
            losses=(tuple(np.linspace(2, 1, len(ms))),),
            peak_kib=60_000,
            before=cool,
            after=cool,
        )
        for i, ms in enumerate(times)
    ]
    return ResultFile(Path("run.jsonl"), (run, *results))


def phone_like(rng: np.random.Generator, drift: float, slower: float = 1.0) -> np.ndarray:
    """Step times of a job: its own luck (3 %), noise of steps (4 %), now and then a step of twice the time."""
    level = 10.0 * slower * drift * rng.lognormal(0, 0.03)
    return level * rng.lognormal(0, 0.04, STEPS) * np.where(rng.random(STEPS) < 0.04, 2.0, 1.0)


def interleaved(seed: int, slower: float = 1.0) -> tuple[ResultFile, ResultFile]:
    """Two builds whose jobs took turns on a phone that grows slower by a quarter in the course of the run."""
    rng, a, b = np.random.default_rng(seed), [], []
    for i in range(ROUNDS):
        drift = 1 + 0.25 * i / ROUNDS
        a.append(phone_like(rng, drift))
        b.append(phone_like(rng, drift, slower))
    return file_of(a), file_of(b)


def verdict(files: tuple[ResultFile, ResultFile]) -> Comparison:
    (found,) = compare(*files, threshold=0.05)
    return found


def test_the_same_build_twice_raises_no_alarm() -> None:
    alarms = [seed for seed in range(20) if verdict(interleaved(seed)).verdict == "FAIL"]
    assert len(alarms) <= 1


def test_a_planted_slowdown_is_found() -> None:
    found = [verdict(interleaved(seed, 1.08)) for seed in range(20)]
    assert all(c.paired for c in found)
    # None may be called good; nearly all are called bad, and the interval knows the truth.
    assert "PASS" not in {c.verdict for c in found}
    assert [c.verdict for c in found].count("FAIL") >= 18
    assert sum(c.interval[0] <= 1.08 <= c.interval[1] for c in found if c.interval) >= 18


def many(seed: int, rounds: int, luck: float, slower: tuple[float, ...]) -> tuple[ResultFile, ResultFile]:
    """Two builds of many variants whose jobs took turns; each of the second build is slower by its factor."""
    rng = np.random.default_rng(seed)

    def build(factors: tuple[float, ...]) -> ResultFile:
        file = file_of([np.ones(6)])
        results = [
            replace(
                file.results[0],
                variant=replace(VARIANT, threads=threads),
                round=round,
                ms=((1.0,) * 5 + (10 * factor * rng.lognormal(0, luck),),),
            )
            for threads, factor in enumerate(factors, 1)
            for round in range(rounds)
        ]
        return replace(file, records=(file.runs[0], *results))

    return build((1.0,) * len(slower)), build(slower)


@pytest.mark.parametrize(("rounds", "luck"), [(6, 0.06), (6, 0.1), (12, 0.06)])
def test_sixteen_variants_raise_no_more_alarms_than_one(rounds: int, luck: float) -> None:
    """Of 60 comparisons 2.5 % are 1.5; without a correction every third to seventh has a FAIL."""
    alike = (many(seed, rounds, luck, (1.0,) * 16) for seed in range(60))
    assert sum(any(c.verdict == "FAIL" for c in compare(*files, 0.05)) for files in alike) <= 3


def test_a_slowdown_among_many_variants_is_found() -> None:
    only_one = [compare(*many(seed, 12, 0.03, (1.08, *[1.0] * 15)), 0.05) for seed in range(20)]
    assert sum(found[0].verdict == "FAIL" for found in only_one) >= 17
    assert {c.verdict for found in only_one for c in found[:1]} <= {"FAIL", "WARN"}
    # What is slow beyond all doubt is found by few rounds too, in all variants.
    assert {c.verdict for c in compare(*many(0, 6, 0.03, (1.3,) * 16), 0.05)} == {"FAIL"}


def test_a_doubtful_one_of_many_is_told_and_the_level_too() -> None:
    files = many(0, 6, 0.06, (1.15, *[1.0] * 15))
    firsts = [replace(f, records=(*f.runs, *(r for r in f.results if r.variant.threads == 1))) for f in files]
    (alone,), among = compare(*firsts, 0.05), compare(*files, 0.05)
    assert (alone.verdict, among[0].verdict) == ("FAIL", "WARN")
    assert among[0].why == f"{alone.why}, but one of 16 variants may be so by chance: raise rounds in the plan"
    assert among[0].interval == alone.interval
    assert comparison_table([alone], 0.05).caption is None
    assert "chance of 2.5%, the clearest is asked for 0.16%" in str(comparison_table(among, 0.05).caption)


@pytest.mark.parametrize(
    ("t", "jobs", "others", "chance"),
    [(2.5706, 6, 1, 0.025), (1.7959, 12, 1, 0.05), (4.0247, 12, 1, 0.001), (2.2281, 6, 6, 0.025)],
)
def test_chance_is_that_of_students_table(t: float, jobs: int, others: int, chance: float) -> None:
    """Pairs have one degree of freedom less than there are; two samples as wide as each other twice that."""
    around = np.random.default_rng(0).standard_normal(jobs)
    around -= around.mean()
    base = np.zeros(1) if others == 1 else around
    error = around.std(ddof=1) * np.sqrt((1 if others == 1 else 2) / jobs)
    assert chance_of(around + t * error, base) == pytest.approx(chance, rel=0.01)


def test_jobs_without_any_luck_leave_nothing_to_chance() -> None:
    assert [chance_of(np.full(6, level), np.ones(6)) for level in (2.0, 1.0)] == [0.0, 1.0]


def test_jobs_of_two_runs_are_two_samples() -> None:
    rng = np.random.default_rng(0)
    a = file_of([phone_like(rng, 1.0) for _ in range(ROUNDS)], "monday")
    b = file_of([phone_like(rng, 1.0, 1.2) for _ in range(8)], "tuesday")
    found = verdict((a, b))
    assert (found.paired, found.jobs, found.verdict) == (False, (ROUNDS, 8), "FAIL")
    assert verdict((b, a)).verdict == "PASS"
    assert "faster" in verdict((b, a)).why


@pytest.mark.parametrize(
    ("ratio", "low", "high", "jobs", "expected"),
    [
        (1.08, 1.03, 1.12, 8, "FAIL"),
        (1.08, 0.98, 1.20, 8, "WARN"),
        (1.01, 0.97, 1.07, 8, "WARN"),
        (1.04, 1.02, 1.049, 8, "PASS"),
        (0.90, 0.88, 0.93, 8, "PASS"),
        (1.50, 1.40, 1.60, 5, "WARN"),
        (float("nan"), float("nan"), float("nan"), 8, "WARN"),
        (1.0, 0.0, float("inf"), 8, "WARN"),
    ],
)
def test_judgement(ratio: float, low: float, high: float, jobs: int, expected: str) -> None:
    assert judge(ratio, low, high, 0.05, jobs, least=6)[0] == expected


def test_counted_instructions_take_the_place_of_times() -> None:
    """Under emulation a step may take longer for any reason; one job of each is enough for counts."""

    def counted(instructions: int, slower: float) -> ResultFile:
        file = file_of([slower * np.ones(STEPS)])
        result = replace(file.results[0], instructions=(instructions, instructions + 2))
        return replace(file, records=(file.runs[0], result))

    before = counted(1_000_000, slower=3.0)
    found = verdict((before, counted(1_080_000, slower=1.0)))
    assert (found.verdict, found.unit, found.a, found.b) == ("FAIL", "instructions", 1_000_001, 1_080_001)
    assert verdict((before, counted(1_020_000, slower=9.0))).verdict == "PASS"
    (summary,) = summarize(before)
    assert summary.instructions == 1_000_001
    assert "1 M" in render(before)
    assert "instructions" not in render(interleaved(0)[0])


@pytest.mark.parametrize(
    ("kind", "threads", "unit"),
    [
        ("local", 1, "ms of CPU"),
        ("local-android", 1, "ms of CPU"),
        ("local", 2, "ms"),
        *((kind, 1, "ms") for kind in ("adb", "ssh")),
    ],
)
def test_cpu_time_takes_the_place_of_time_where_others_work_too(kind: Kind, threads: int, unit: str) -> None:
    """Other programs took half of the processor away from the second build, which computes a tenth less."""
    a, b = (file_of([level * np.ones(STEPS)] * ROUNDS) for level in (10.0, 20.0))
    facts = replace(FACTS, kind=kind)

    def on(file: ResultFile, cpu: float) -> ResultFile:
        few = replace(VARIANT, threads=threads)
        results = [replace(r, variant=few, cpu_ms=((cpu,) * STEPS,)) for r in file.results]
        return replace(file, records=(replace(file.runs[0], facts=facts), *results))

    found = verdict((on(a, 9.0), on(b, 8.1)))
    assert (found.unit, found.verdict) == (unit, "FAIL" if unit == "ms" else "PASS")
    assert found.ratio == pytest.approx(2.0 if unit == "ms" else 0.9)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(comparison_table([found], 0.05), results_table(on(a, 9.0)))
    assert f"{10 if unit == 'ms' else 9} {unit} " in captured.get()
    assert verdict((on(a, 0.0), on(b, 0.0))).unit == "ms", "a clock in which a step takes no time says nothing"


def test_what_one_file_lacks_is_told() -> None:
    a, b = interleaved(0)
    other = replace(VARIANT, program="letters")
    more = [replace(r, variant=other) for r in a.results]
    fault = FaultLine("killed", "SERIAL: gone", "2026-01-01T00:02:00", other)
    found = compare(replace(a, records=(*a.records, *more)), replace(b, records=(*b.records, fault)), 0.05)
    assert [(c.key, c.verdict) for c in found if c.b is None] == [("letters batch 8 cpu 1 thread", "WARN")]
    assert "no result now, the last fault is 'killed'" in found[-1].why
    assert found[-1].a is not None
    assert comparison_table(found, 0.05).row_count == 2
    # Of another variant's fault nothing is said here.
    other_fault = replace(fault, variant=replace(VARIANT, program="numbers"))
    without = replace(b, records=(*b.records, other_fault))
    assert compare(replace(a, records=(*a.records, *more)), without, 0.05)[-1].why == "no result now"
    # A run in which all failed has a row for each variant.
    (nothing,) = compare(a, replace(b, records=(b.runs[0], fault, replace(fault, kind="gone", variant=None))), 0.05)
    assert (nothing.verdict, nothing.b) == ("WARN", None)
    assert "the last fault is 'gone'" in nothing.why
    # The other way round it is new.
    assert "no result before" in compare(b, replace(a, records=(*a.records, *more)), 0.05)[-1].why


def test_runs_that_trained_otherwise_are_not_compared() -> None:
    a, b = interleaved(0)
    run = b.runs[0]
    longer = replace(run, setup=replace(run.setup, warmup=6, learning_rate=0.1))
    with pytest.raises(UsageError, match=r"warmup 5 and 6, learning_rate 0\.01 and 0\.1"):
        compare(a, replace(b, records=(longer, *b.results)), 0.05)
    updated = replace(run, facts=replace(run.facts, fingerprint="new", app="c" * 64), allowed=("BATTERY",))
    told = differences(a, replace(b, records=(updated, *b.results)))
    assert [line.partition(":")[0] for line in told] == ["system", "app", "accepted conditions"]
    assert differences(a, b) == []


def test_times_of_an_emulated_processor_get_no_verdict() -> None:
    a, b = interleaved(0, slower=2.0)
    emulated = [
        replace(f, records=(replace(f.runs[0], facts=replace(f.runs[0].facts, is_emulator=True)), *f.results))
        for f in (a, b)
    ]
    assert [verdict((x, y)).verdict for x, y in ((a, b), emulated)] == ["FAIL", "WARN"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ms": [], "cpu_ms": [], "losses": []}, "whole trainings"),
        ({"ms": [[]], "cpu_ms": [[]], "losses": [[]]}, "whole trainings"),
        ({"ms": [[1.0] * STEPS, [1.0]]}, "whole trainings"),
        ({"ms": [[1.0] * (STEPS - 1) + [-1.0]]}, "no positive number"),
        ({"ms": [[1.0] * (STEPS - 1) + [float("nan")]]}, "expected a finite number"),
        ({"cpu_ms": [[1.0]]}, "whole trainings"),
        ({"cpu_ms": [[-1.0] * STEPS]}, "a CPU time is below 0"),
        ({"ms": [[1.0] * 3], "cpu_ms": [[1.0] * 3], "losses": [[1.0] * 3]}, "1 × 3 steps, and the run has 1 × 30"),
        ({"instructions": [0]}, "instructions are not a positive number"),
        ({"instructions": [-5]}, "instructions are not a positive number"),
        ({"instructions": [7, 7]}, "instructions are not a positive number for each"),
    ],
)
def test_numbers_that_no_job_can_have_are_refused(change: dict, message: str, tmp_path: Path) -> None:
    lines = [json.dumps(asdict(record)) for record in interleaved(0)[0].records]
    lines[2] = json.dumps({**json.loads(lines[2]), **change})
    (tmp_path / "r.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(UsageError, match=message) as raised:
        read_results(tmp_path / "r.jsonl")
    assert ":3" in str(raised.value)


@pytest.mark.parametrize("change", [{"warmup": STEPS}, {"warmup": -1}, {"steps": 0, "warmup": 0}, {"repeats": 0}])
def test_a_setup_in_which_no_step_counts_is_refused(change: dict, tmp_path: Path) -> None:
    first, *others = [json.dumps(asdict(record)) for record in interleaved(0)[0].records]
    run = json.loads(first)
    changed = json.dumps({**run, "setup": {**run["setup"], **change}})
    (tmp_path / "r.jsonl").write_text("\n".join([changed, *others]) + "\n")
    with pytest.raises(UsageError, match=r"r\.jsonl:1: .* are warm-up"):
        read_results(tmp_path / "r.jsonl")


def test_the_command(tmp_path: Path) -> None:
    for name, file in zip(("a", "b"), interleaved(0, 1.2), strict=True):
        with Log(tmp_path / name, resume=False) as log:
            for record in file.records:
                log.write(record)
    runner, (a, b) = CliRunner(), (str(tmp_path / name) for name in ("a", "b"))
    with pytest.raises(NumericError, match="slower than before: digits batch 8 cpu 1 thread"):
        runner.invoke(app, ["compare", a, b], catch_exceptions=False)
    good = runner.invoke(app, ["compare", b, a], catch_exceptions=False)
    assert good.exit_code == 0
    assert "PASS" in good.output
    assert runner.invoke(app, ["compare", a, b, "--threshold", "0.5"], catch_exceptions=False).exit_code == 0


def test_two_devices_are_not_compared() -> None:
    a, b = interleaved(0)
    other = file_of([np.ones(STEPS)], model="Other")
    with pytest.raises(UsageError, match="two devices"):
        compare(a, other, 0.05)
    with pytest.raises(UsageError, match="in common"):
        compare(replace(a, records=a.records[:1]), replace(b, records=b.records[:1]), 0.05)


def test_the_page_holds_everything() -> None:
    file, _ = interleaved(0)
    check = Checked("c", VARIANT, True, (2.0, 1.9), (2.0, 1.9), 1e-6, 2e-5, "dense/kernel")
    heat = replace(file.results[0], id="hot", discarded="the thermal status rose from none to light")
    later = replace(file.runs[0], allowed=("BATTERY",))
    fault = FaultLine("gone", "SERIAL: the connection is <gone> & away", "2026-01-01T00:01:00")
    page = render(replace(file, records=(*file.records, later, check, heat, fault)))
    assert "Measured although: BATTERY" in page
    assert page.count("<svg") == page.count("</svg>") == 3
    assert "within 1e-06" in page
    assert "rose from none to light" in page
    assert "&lt;gone&gt; &amp; away" in page
    assert "src=" not in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ).replace("https://matplotlib.org", "")
    assert render(file_of([]))  # a run without results has a page too


def test_names_with_brackets_are_shown_as_they_are() -> None:
    named = replace(VARIANT, program="a[b]c")
    files = [
        replace(f, records=(f.runs[0], *(replace(r, variant=named, runtime="x [/foo]") for r in f.results)))
        for f in interleaved(0)
    ]
    console = Console(width=200)
    with console.capture() as captured:
        console.print(results_table(files[0]))
        console.print(comparison_table(compare(*files, 0.05), 0.05))
    assert captured.get().count("a[b]c batch 8") == 2
    assert "x [/foo]" in captured.get()
    assert device_row(replace(FACTS, model="Phone [/b]"), Conditions())[1] == r"Phone \[/b]"


def test_variants_stand_in_the_order_of_the_plan() -> None:
    """Chance may let the first round begin with the last variant; the checks before it go as the plan does."""
    a, b = VARIANT, replace(VARIANT, program="letters")
    file, _ = interleaved(0)
    checks = [Checked("c", v, True, (2.0,), (2.0,), 0.0, 0.0, "kernel") for v in (a, b)]
    results = [replace(r, variant=v) for r in file.results for v in (b, a)]
    checked, unchecked = (replace(file, records=(file.runs[0], *c, *results)) for c in (checks, []))
    assert [s.title for s in summarize(checked)] == [a.title, b.title]
    assert [s.title for s in summarize(unchecked)] == [b.title, a.title]
    assert [c.key for c in compare(checked, checked, 0.05)] == [a.key, b.key]


def test_summary_and_tables() -> None:
    a, b = interleaved(1)
    (summary,) = summarize(a)
    assert summary.median == pytest.approx(np.median([ms for r in a.results for ms in r.ms[0][5:]]))
    assert (summary.jobs, summary.steps) == (ROUNDS, ROUNDS * (STEPS - 5))
    assert results_table(a).row_count == 1
    assert comparison_table(compare(a, b, 0.05), 0.05).row_count == 1
    assert json.dumps([r.ms for r in a.results])
