"""Plans, data, job files and result files: what is right is read back the same, what is wrong is named."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.program.file import read_program
from converter.support.errors import UsageError
from converter.support.records import decode
from scripts.harness import worker
from scripts.harness.batches import batches_from, random_batches, read_batches
from scripts.harness.conditions import check_names, concerns, preflight
from scripts.harness.device import Conditions, Facts, Job
from scripts.harness.devices.phone import parse_conditions, parse_facts
from scripts.harness.devices.transport import unmarked
from scripts.harness.faults import NotReady
from scripts.harness.log import Began, Checked, FaultLine, Log, Record, finished, read_results
from scripts.harness.plan import Plan, Variant, read_plan
from scripts.harness.reference import agreement, reference
from tests.harness.conftest import build_program
from tests.harness.test_compare import file_of, interleaved


def plan_of(folder: Path, text: str) -> Path:
    path = folder / "plan.toml"
    path.write_text(text)
    return path


# -- plans -------------------------------------------------------------------------------------------------------------


def test_a_plan_is_every_combination_forth_and_back(program: Path, tmp_path: Path) -> None:
    for build in ("old", "new"):
        for batch in (2, 4):
            (tmp_path / build).mkdir(exist_ok=True)
            build_program(tmp_path / build / f"net-{batch}.tflite", batch=batch)
    bench = read_plan(
        plan_of(
            tmp_path,
            'programs = ["net-{batch}.tflite"]\nbatch_sizes = [2, 4]\nthreads = [1, 2]\nrounds = 2\n'
            '[builds]\nold = "old"\nnew = "new"\n',
        )
    )
    keys = [(s.variant.build, s.variant.key) for s in bench.subjects]
    assert len(set(keys)) == len(keys) == 8
    assert keys[:2] == [(b, "net-2 batch 2 cpu 1 thread") for b in ("old", "new")]
    order = [(r, s.variant) for r, s in bench.order()]
    assert [v for r, v in order if r == 1] == [v for r, v in order if r == 0][::-1]


def test_micro_batches_are_an_axis(tmp_path: Path) -> None:
    for batch, rows in ((2, 2), (8, 2), (8, 4)):
        build_program(tmp_path / f"net-{batch}-{rows}.tflite", batch=batch, micro_batch=rows)
    axis = 'programs = ["net-{batch}-{micro_batch}.tflite"]\nbatch_sizes = [2, 8]\nmicro_batch_sizes = '
    bench = read_plan(plan_of(tmp_path, f"{axis}[2, 4]"))
    # No program has micro-batches of 4 in a batch of 2.
    assert [s.variant.key.partition(" cpu")[0] for s in bench.subjects] == [
        "net-2-2 batch 2",
        "net-8-2 batch 8 by 2",
        "net-8-4 batch 8 by 4",
    ]
    (tmp_path / "net-8-4.tflite").write_bytes((tmp_path / "net-8-2.tflite").read_bytes())
    with pytest.raises(UsageError, match="its micro_batch is 2, and the plan says 4"):
        read_plan(plan_of(tmp_path, f"{axis}[2, 4]"))
    with pytest.raises(UsageError, match=r"micro_batch_sizes\[0\]: must be from 1"):
        read_plan(plan_of(tmp_path, f"{axis}[0]"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "missing field 'programs'"),
        ("programs = []", "programs: is empty"),
        ('programs = ["P"]\nthreds = [1]', "Did you mean 'threads'"),
        ('programs = ["P"]\nrounds = 0', "rounds: must be from 1"),
        ('programs = ["P"]\nsteps = 5\nwarmup = 5', "warmup: must be from 0 to 4"),
        ('programs = ["P"]\naccelerators = ["tpu"]', "'tpu' is none of"),
        ('programs = ["P"]\nbatch_sizes = [2]', "belong together"),
        ('programs = ["P"]\nmicro_batch_sizes = [2]', "micro_batch_sizes: these and a {micro_batch}"),
        ('programs = ["nowhere.tflite"]', "no such file"),
        ("programs = [", "no TOML"),
    ],
)
def test_a_wrong_plan_is_told(program: Path, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_plan(plan_of(tmp_path, text.replace("P", str(program))))


# -- data --------------------------------------------------------------------------------------------------------------


def test_data_from_a_seed(program: Path, tmp_path: Path) -> None:
    manifest = read_program(program).manifest
    data = random_batches(manifest, 3, seed=0)
    assert data == random_batches(manifest, 3, seed=0) != random_batches(manifest, 3, seed=1)
    (tmp_path / "b").write_bytes(data)
    batches = read_batches(tmp_path / "b", manifest)
    assert len(batches) == 3
    assert isinstance(batches[0].inputs, np.ndarray)
    assert (batches[0].inputs.shape, batches[0].target.shape, batches[0].weight.tolist()) == ((8, 12), (8,), [1] * 8)
    assert set(np.concatenate([b.target for b in batches])) <= {0, 1, 2}
    (tmp_path / "b").write_bytes(data[:-1])
    with pytest.raises(UsageError, match="a batch of this program has"):
        read_batches(tmp_path / "b", manifest)


def test_data_of_a_person(program: Path, tmp_path: Path) -> None:
    manifest = read_program(program).manifest
    x, y = np.random.default_rng(0).standard_normal((20, 12)), np.arange(20) % 3
    np.savez(tmp_path / "d.npz", x=x, y=y)
    (tmp_path / "b").write_bytes(batches_from(manifest, tmp_path / "d.npz", 10))
    batches = read_batches(tmp_path / "b", manifest)
    assert len(batches) == 2
    np.testing.assert_array_equal(np.asarray(batches[1].inputs), x[8:16].astype("float32"))
    np.testing.assert_array_equal(batches[1].target, y[8:16])
    np.savez(tmp_path / "d.npz", x=x[:, :5], y=y)
    with pytest.raises(UsageError, match=r"x has the shape \(20, 5\)"):
        batches_from(manifest, tmp_path / "d.npz", 10)


# -- the worker --------------------------------------------------------------------------------------------------------


def job_of(program: Path, folder: Path, **changes: Any) -> Job:
    (folder / "b").write_bytes(random_batches(read_program(program).manifest, 2, 0))
    return replace(Job("j", str(program), str(folder / "b"), steps=3, learning_rate=0.1, repeats=2), **changes)


def test_a_worker_leaves_what_the_app_leaves(program: Path, tmp_path: Path) -> None:
    worker.run(job_of(program, tmp_path), tmp_path / "results")
    lines = [json.loads(line) for line in (tmp_path / "results/j.jsonl").read_text().splitlines()]
    steps = ["step"] * 3
    assert [line["type"] for line in lines] == ["device", "start", *steps, "end", "start", *steps, "end"]
    assert json.loads((tmp_path / "results/j.result.json").read_text()) == {
        "format": "pocketune-result/1",
        "id": "j",
        "ok": True,
        "error": None,
        "lines": len(lines),
    }
    host = reference(program, (tmp_path / "b").read_bytes(), 3, 0.1)
    assert [line["loss"] for line in lines if line["type"] == "step"] == [*host.losses, *host.losses]
    assert all(line["cpu_millis"] > 0 for line in lines if line["type"] == "step")


def test_a_step_of_micro_batches_is_one_step(program: Path, tmp_path: Path) -> None:
    """The same data, one line a step, and the losses of the whole batch."""
    parts = build_program(tmp_path / "parts.tflite", micro_batch=2)
    manifest = read_program(parts).manifest
    assert random_batches(manifest, 2, 0) == random_batches(read_program(program).manifest, 2, 0)
    losses = []
    for name, file in (("whole", program), ("parts", parts)):
        worker.run(job_of(file, tmp_path, id=name, repeats=1), tmp_path)
        lines = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        losses.append([line["loss"] for line in lines if line["type"] == "step"])
    assert len(losses[1]) == 3
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_worker_tells_what_went_wrong(program: Path, tmp_path: Path) -> None:
    worker.run(job_of(program, tmp_path, accelerator="gpu"), tmp_path)
    result = json.loads((tmp_path / "j.result.json").read_text())
    assert not result["ok"]
    assert "'gpu' is not offered" in result["error"]
    assert json.loads((tmp_path / "j.jsonl").read_text().splitlines()[-1])["type"] == "error"


def test_a_job_file_is_checked() -> None:
    job = Job("j", "p", "b", 3, 0.1)
    assert decode(Job, asdict(job), "job") == job
    with pytest.raises(UsageError, match=r"job\.steps: expected an integer"):
        decode(Job, {**asdict(job), "steps": "3"}, "job")


# -- agreement ---------------------------------------------------------------------------------------------------------


def test_an_update_that_is_a_little_wrong_is_found(program: Path, tmp_path: Path) -> None:
    """A learning rate 5 % off changes no weight by 1 %, and every update by 5 %."""
    from scripts.harness.outcome import Outcome, Start
    from scripts.harness.plan import Tolerance

    data = random_batches(read_program(program).manifest, 4, 0)
    host, other = (reference(program, data, 4, rate) for rate in (0.01, 0.0105))
    start = Start(0, "r", "cpu", "cpu", None, None, conditions=None)  # type: ignore[arg-type]
    same, wrong = (
        agreement(
            Outcome(start, ((1.0,),), ((1.0,),), (found.losses,), None, None, (), found.trained), host, Tolerance()
        )
        for found in (host, other)
    )
    assert same.ok
    assert same.update_error == same.loss_error == 0
    assert not wrong.ok
    assert wrong.update_error == pytest.approx(0.05, rel=0.1)


# -- conditions --------------------------------------------------------------------------------------------------------

PHONE = Facts("adb", "S", "Phone", sdk=34, abis=("arm64-v8a",))


@pytest.mark.parametrize(
    ("now", "name"),
    [
        (Conditions(battery_percent=24), "BATTERY"),
        (Conditions(thermal=1), "THERMAL"),
        (Conditions(power_saver=True), "LOW_POWER"),
        (Conditions(screen_on=False), "SCREEN"),
        (Conditions(free_bytes=1), "SPACE"),
        (Conditions(available_bytes=1), "MEMORY"),
        (Conditions(load=0.9), "BUSY"),
    ],
)
def test_each_condition_blocks_unless_allowed(now: Conditions, name: str) -> None:
    assert [c.name for c in concerns(PHONE, now)] == [name]
    with pytest.raises(NotReady, match=name):
        preflight(PHONE, now, ())
    assert preflight(PHONE, now, (name, "EMULATOR")) == [name]


def test_conditions_that_do_not_exist_are_told() -> None:
    with pytest.raises(UsageError, match="Did you mean 'BATTERY'"):
        check_names(["BATERY"])


def test_all_that_is_unknown_blocks_nothing() -> None:
    assert preflight(PHONE, Conditions(), ()) == []
    assert preflight(PHONE, parse_conditions(""), ()) == []
    assert parse_facts("S", "", None).model == "unknown"


@given(st.text(max_size=400))
def test_no_words_of_a_phone_break_the_harness(text: str) -> None:
    parse_conditions(text)
    parse_facts("S", text, None)
    unmarked(text, "")


def test_a_reply_without_its_marker_is_none() -> None:
    whole = unmarked("7\n\nPOCKETUNE-END 3\n", "")
    assert whole is not None
    assert (whole.code, whole.out) == (3, "7\n")
    assert unmarked("7\n\nPOCKETUNE-EN", "") is None
    assert unmarked("7\n", "") is None


# -- result files ------------------------------------------------------------------------------------------------------


def written(path: Path) -> tuple[Record, ...]:
    file, _ = interleaved(0)
    with Log(path, resume=False) as log:
        for record in file.records:
            log.write(record)
    return file.records


def test_results_are_read_back_the_same(tmp_path: Path) -> None:
    records = written(tmp_path / "r.jsonl")
    assert read_results(tmp_path / "r.jsonl").records == records


def test_a_result_file_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    file, _ = interleaved(0)
    variant = file.results[0].variant
    run, fault = file.runs[0], FaultLine("not-ready", "", "")
    checked = Checked("c", variant, True, (2.0,), (2.0,), 0.0, 0.0, "kernel")
    began = Began("j", variant, 0, 0, "")
    for records, is_begun in (([run, fault], False), ([run, checked], True), ([run, began, fault], True)):
        path.unlink(missing_ok=True)
        with Log(path, resume=False) as log:
            for record in records:
                log.write(record)
        if is_begun:
            with pytest.raises(UsageError, match="--resume"):
                Log(path, resume=False)
        else:
            with Log(path, resume=False) as log:
                assert log.earlier is None
            assert not path.stat().st_size


@pytest.mark.parametrize("text", ['{"my": "only copy"}', "notes", '{"session": "x"}\n'])
@pytest.mark.parametrize("resume", [True, False])
def test_a_file_of_somebody_elses_is_left_alone(tmp_path: Path, text: str, resume: bool) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError):
        Log(path, resume)
    assert path.read_text() == text


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 400))
def test_a_file_cut_anywhere_is_taken_up(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "r.jsonl"
    file, _ = interleaved(0)
    records = file.records[:3]
    with Log(path, resume=False) as log:
        for record in records:
            log.write(record)
    path.write_bytes(path.read_bytes()[:-cut])
    with Log(path, resume=True) as log:
        assert log.earlier is not None
        kept = log.earlier.records
        assert kept == records[: len(kept)]
        log.write(records[-1])
    assert read_results(path).records == (*kept, records[-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: {**line, "more": 1}, "unknown field 'more'"),
        (lambda line: {k: v for k, v in line.items() if k != "runs"}, "missing field 'runs'"),
        (lambda line: {**line, "seconds": "1"}, "expected a number"),
        (lambda line: {**line, "type": "resalt"}, "no record of a known type"),
        (lambda line: [line], "no record of a known type"),
    ],
)
def test_a_line_that_is_not_as_it_should_be(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "r.jsonl"
    written(path)
    lines = path.read_text().splitlines()
    lines[3] = json.dumps(change(json.loads(lines[3])))
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UsageError, match=message) as raised:
        read_results(path)
    assert ":4" in str(raised.value)


def test_another_file_is_no_result_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"type": "began"}\n')
    with pytest.raises(UsageError, match="missing field"):
        read_results(tmp_path / "x")
    (tmp_path / "x").write_text("")
    with pytest.raises(UsageError, match="no result in it yet"):
        read_results(tmp_path / "x")


def test_one_run_writes_to_a_file(tmp_path: Path) -> None:
    with Log(tmp_path / "r.jsonl", resume=False), pytest.raises(UsageError, match="another run writes to it"):
        Log(tmp_path / "r.jsonl", resume=True)
    Log(tmp_path / "r.jsonl", resume=True).__exit__(None, None, None)


def test_programs_of_one_name_are_refused(program: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    build_program(tmp_path / "b" / "tiny.tflite", width=8)
    with pytest.raises(UsageError, match="two of them would stand in the results as 'tiny batch 8 cpu 1 thread'"):
        read_plan(plan_of(tmp_path, f'programs = ["{program}", "b/tiny.tflite"]'))


def test_a_run_goes_on_with_the_same_data_only(program: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((8, 12)).astype("f4"), "y": rng.integers(0, 3, 8)}
    np.savez(tmp_path / "mine.npz", **arrays)
    path = plan_of(tmp_path, f'programs = ["{program}"]\ndata = "mine.npz"')
    before = read_plan(path).hash
    assert read_plan(path).hash == before
    np.savez(tmp_path / "mine.npz", **{**arrays, "x": arrays["x"] + 1})
    assert read_plan(path).hash != before
    (tmp_path / "mine.npz").unlink()
    with pytest.raises(UsageError, match=r"plan\.toml\.data: there is no file"):
        read_plan(path)


def test_what_only_began_is_not_finished() -> None:
    variant = Variant("", "p", "0", 8, 8, "cpu", 1)
    assert finished([Began("i", variant, 0, 0, "t")]) == set()
    (result,) = file_of([np.ones(10)]).results
    assert finished([result]) == {(result.variant, 0)}
    assert finished([replace(result, discarded="hot")]) == set()


def test_a_plan_and_its_defaults_are_in_agreement() -> None:
    plan = Plan(programs=("a",))
    assert 0 < plan.check_steps <= plan.steps
    assert plan.warmup < plan.steps
