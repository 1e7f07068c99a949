"""A whole search on evaluations that are made up: what it finds, what it says, and that a kill changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from converter.backend.targets import target
from converter.support.errors import DeviceError, UsageError
from converter.tools.search.analysis import MeanEstimate, estimate
from converter.tools.search.budgets import parse_budgets
from converter.tools.search.evaluator import SearchJournal, SearchProgress
from converter.tools.search.findings import Trained
from converter.tools.search.found import Found
from converter.tools.search.space import Candidate
from converter.tools.search.subject import Evaluation
from converter.tools.search.workers import Processes
from tests.tools.search.common import NAMED, fake, space
from tests.tools.search.mortal import Mortal
from tests.tools.search.run_fake import EFFORT, run
from tests.tree import ROOT


@cache
def found() -> Found:
    return run(None)


def mean_of(trained: Trained) -> float:
    """Over all its trainings."""
    return float(np.mean(found().findings.judged(trained)))


def test_the_found_scheme_is_within_the_budget_and_the_best_that_was_trained() -> None:
    findings = found().findings
    limit = 0.6 * next(t for t in findings.trained if t.name == "full").costs["resident_bytes"]
    assert findings.limits == {"resident_bytes": limit}
    within = [t for t in findings.trained if t.costs["resident_bytes"] <= limit]
    assert findings.found in within
    assert all(t.within == (t in within) for t in findings.trained)
    judged = [t for t in within if t.name in findings.held_out]
    assert mean_of(findings.found) == max(mean_of(t) for t in judged)
    assert len({json.dumps(t.update) for t in findings.trained}) == len(findings.trained)
    assert any(t.predicted is not None for t in findings.trained)


def test_rates_are_chosen_on_the_rows_that_select() -> None:
    """One of three diverges, one is worse."""
    assert {t.rate for t in found().findings.trained} == {0.01}
    asked: list[Evaluation] = []

    def watched(job: Evaluation) -> dict[str, Any]:
        asked.append(job)
        return fake(job)

    run(None, watched)
    judged = [trial for job in asked for trial in job.trials if trial.on == "held_out"]
    assert {trial.rate for trial in judged} == {0.01}
    first = next(i for i, job in enumerate(asked) if any(trial.on == "held_out" for trial in job.trials))
    assert all(trial.on == "held_out" for job in asked[first:] for trial in job.trials)


def test_a_rate_that_did_best_at_first_and_fails_later_is_given_up() -> None:
    asked: list[tuple[Any, int, float]] = []

    def lucky(job: Evaluation) -> dict[str, Any]:
        """Of full training the larger rate is better in the first training, and worse in the others."""
        if job.update != "full" or not job.trials:
            return fake(job)
        asked.extend((trial.on, trial.seed, trial.rate) for trial in job.trials)
        return {"scores": [0.9 if t.rate < 0.01 else 0.95 if t.seed == 0 else 0.2 for t in job.trials]}

    findings = run(None, lucky, effort=replace(EFFORT, rates=(0.003, 0.01), rate_seeds=1)).findings
    (full,) = (t for t in findings.trained if t.name == "full")
    assert (full.rate, full.scores) == (0.003, (0.9, 0.9, 0.9))
    one, other = ([("selection", seed, rate) for seed in (1, 2)] for rate in (0.01, 0.003))
    assert asked[2:6] == [*one, *other]


def test_rates_may_be_compared_by_few_trainings() -> None:
    asked: list[Evaluation] = []

    def watched(job: Evaluation) -> dict[str, Any]:
        asked.append(job)
        scores = fake(job)
        late = [trial.seed == 2 and trial.rate == 0.01 and job.update == "head" for trial in job.trials]
        return (
            {"scores": [None if lost else s for lost, s in zip(late, scores["scores"], strict=True)]}
            if late
            else scores
        )

    findings = run(None, watched, effort=replace(EFFORT, rate_seeds=2)).findings
    selecting = [(job.update, t) for job in asked for t in job.trials if t.on == "selection"]
    assert len(selecting) == len({(json.dumps(update), trial) for update, trial in selecting})
    # Both rates by two trainings; the third training is with the best alone, and where that diverges with the other.
    assert {t.rate for update, t in selecting if t.seed == 2 and update != "head"} == {0.01}
    assert [t.rate for update, t in selecting if t.seed == 2 and update == "head"] == [0.01, 0.003]
    assert {t.rate for t in findings.trained} == {0.01, 0.003}
    assert all(len(t.scores) == 3 for t in findings.trained)


def test_a_rate_at_the_edge_is_told() -> None:
    edge = "the best of the learning rates was the first or last for"
    assert not any(edge in sentence for sentence in found().sentences())
    told = run(None, effort=replace(EFFORT, rates=(0.003, 0.01))).sentences()
    assert any(edge in sentence and "head (0.01)" in sentence for sentence in told)


def test_the_front_holds_what_nothing_beats() -> None:
    findings = found().findings
    for one in findings.trained:
        beaten = [
            any(
                o.mean >= one.mean and o.costs[f] <= one.costs[f] and (o.mean, o.costs[f]) != (one.mean, one.costs[f])
                for o in findings.trained
            )
            for f in ("resident_bytes", "step_cost")
        ]
        assert (one.name in findings.pareto) == (not all(beaten))
    assert {"full", "head", "bias-only", "pockengine", findings.found.name, *findings.pareto} == set(findings.held_out)


def test_gains_are_paired_with_the_head_and_guesses_are_ranked() -> None:
    findings = found().findings
    by_name = {t.name: t for t in findings.trained}
    part = by_name["block_2/w 1"]
    gain = findings.gains["block_2/w 1"]
    low, high = stats.ttest_rel(part.scores, by_name["head"].scores).confidence_interval(0.95)
    np.testing.assert_allclose((gain.mean - gain.error, gain.mean + gain.error), (low, high))
    prior = next(ranking for ranking in findings.rankings if ranking.guess == "prior")
    names = list(findings.gains)
    expected = stats.spearmanr([findings.guesses["prior"][n] for n in names], [findings.gains[n].mean for n in names])
    assert prior.rho == pytest.approx(expected.statistic)
    assert findings.guesses["fisher"]["block_2/w 1/4"] == 3.0
    assert findings.guesses["fisher"]["block_2/w 1"] == 6.5


def test_figures_have_no_negative_zero_and_few_trainings_a_word() -> None:
    assert found().figure(MeanEstimate(-0.0001, 0.02), sign=True) == "0.0 ± 2.0"
    assert found().figure(MeanEstimate(-0.02, 0.02), sign=True) == "-2.0 ± 2.0"
    assert str(MeanEstimate(0.011, 0.02)) == "+1.1 ± 2.0"
    assert not any("standard error" in said for said in run(None, effort=replace(EFFORT, seeds=4)).sentences())
    width = stats.t.ppf(0.975, 1)
    (said,) = (s for s in run(None, effort=replace(EFFORT, seeds=2)).sentences() if "standard error" in s)
    assert f"intervals of 2 trainings are {width:.1f} times" in said


def test_progress_says_of_what() -> None:
    told: list[SearchProgress] = []
    run(None, progress=told.append)
    stages = list(dict.fromkeys(each.stage for each in told))
    assert stages == [
        "schemes priced",
        "schemes trained, to select",
        "gradients and information of the parts",
        "schemes trained, to report",
    ]
    assert all(1 <= each.done <= each.all for each in told)
    scores = [each.best[1] for each in told if each.best is not None]
    assert scores == sorted(scores)
    assert told[-1].best == (max(found().findings.trained, key=lambda t: (t.within, t.mean)).name, scores[-1])


def test_what_is_said_of_the_found_scheme() -> None:
    said = "\n".join(found().sentences())
    for name in ("head", "bias-only", "pockengine"):
        by = found().findings.against()[name]
        verb = "beats" if by.mean > by.error else "falls short of" if by.mean < -by.error else "does not differ from"
        assert f"the found scheme {verb} {name}: {found().figure(by, sign=True)}" in said
    json.dumps(found().to_json(), allow_nan=False)


def test_what_is_as_good_as_full_and_takes_least() -> None:
    assert "all others fall short of full" in found().sentences()
    findings = found().findings
    full = next(t for t in findings.trained if t.name == "full")
    high = np.array(findings.held_out["full"])
    # Better on the average; worse, but not by more than chance; worse each time.
    as_good = {"bias-only": high + 0.01, "pockengine": high - [0.04, 0.0, 0.01], "head": high - [0.04, 0.05, 0.04]}
    held_out = {name: tuple(scores) for name, scores in as_good.items()} | {"full": tuple(high)}
    trained = tuple(replace(t, scores=held_out.get(t.name, t.scores)) for t in findings.trained)
    interval = stats.ttest_rel(2 * held_out["pockengine"], 2 * held_out["full"]).confidence_interval(0.95)
    assert interval.low < 0 < interval.high

    def most(trained: Trained) -> float:
        return max(trained.costs[figure] / full.costs[figure] for figure in ("resident_bytes", "step_cost"))

    least = min((t for t in findings.trained if t.name in ("bias-only", "pockengine")), key=most)
    share = least.costs["resident_bytes"] / full.costs["resident_bytes"]
    said = replace(found(), findings=replace(findings, held_out=held_out, trained=trained)).sentences()
    expected = f"of what does not fall short of full, {least.name} takes least: {share:.0%} of its memory"
    assert any(sentence.startswith(expected) for sentence in said)


def test_killed_three_times_it_ends_with_the_same(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    for jobs in (5, 17, 9):
        assert process(journal, jobs).returncode == -9
        with journal.open("a") as file:
            file.write('{"asked": {"cos')  # it was writing
    assert run(journal).to_json() == found().to_json()
    lines = journal.read_text().splitlines()
    asked = [json.dumps(json.loads(line)["asked"], sort_keys=True) for line in lines[1:]]
    assert len(set(asked)) == len(asked)

    def nothing(job: Evaluation) -> dict[str, Any]:
        raise AssertionError(job)

    assert run(journal, nothing).to_json() == found().to_json()


def process(journal: Path, jobs: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.tools.search.run_fake", str(journal), str(jobs)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_a_journal_of_another_search_is_refused(tmp_path: Path) -> None:
    SearchJournal(tmp_path / "journal.jsonl", {"of": "one"})
    with pytest.raises(UsageError, match="another search"):
        SearchJournal(tmp_path / "journal.jsonl", {"of": "other"})


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ("time=3", "expected memory=... or step=..."),
        ("memory=64", "expected memory=64MiB"),
        ("memory=0MiB", "expected memory=64MiB"),
        ("step=40ms", "costs of the target litert-2 are in instructions"),
        ("memory=head-5%", "expected memory=64MiB"),
    ],
)
def test_budgets_that_are_none(budget: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_budgets([budget], target("litert-2"))


def test_budgets() -> None:
    costs = {"full": {"resident_bytes": 100, "step_cost": 1000}, "head": {"resident_bytes": 40, "step_cost": 10}}
    texts = ["memory=head+25%", "step=40ms"]
    assert [b.limit(costs) for b in parse_budgets(texts, target("litert-2/x86-64"))] == [50, 40e6]
    texts = ["step=30%", "memory=1.5KiB"]
    assert [b.limit(costs) for b in parse_budgets(texts, target("litert-2"))] == [300, 1536]
    with pytest.raises(UsageError, match="at the most"):
        parse_budgets(["step=3%", "step=4%"], target("litert-2"))


def test_a_budget_that_the_head_does_not_fit() -> None:
    with pytest.raises(UsageError, match="the head alone takes"):
        run(None, budgets=("memory=1KB",))


def test_intervals_are_those_of_student() -> None:
    assert estimate([1.0, 1.0, 1.0]).error == 0
    values = [0.1, 0.5, 0.3, 0.2]
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    one = estimate(values)
    np.testing.assert_allclose((one.mean - one.error, one.mean + one.error), (low, high))


def test_what_a_dead_worker_had_is_done_again(tmp_path: Path) -> None:
    jobs = [Evaluation(str(number)) for number in range(5)]
    done = dict(Processes(Mortal(tmp_path), 1).each(jobs))
    assert done == {number: {"of": str(number)} for number in range(5)}


def test_workers_that_always_die_end_the_search(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="died 3 times"):
        list(Processes(Mortal(tmp_path, always=True), 1).each([Evaluation("head")]))


def test_the_effort_counts() -> None:
    assert all(len(t.scores) == EFFORT.seeds for t in found().findings.trained)


def test_what_does_not_fit_alone_may_be_left_out() -> None:
    effort = replace(EFFORT, affordable=True, generations=0)
    findings = run(None, budgets=("memory=60%",), effort=effort).findings
    limit = findings.limits["resident_bytes"]
    by_name = {t.name: t for t in findings.trained}
    assert all(by_name[unit.name].costs["resident_bytes"] <= limit for unit in findings.units)
    assert len(findings.units) < len(found().findings.units)


def test_what_is_more_than_too_much_is_not_priced() -> None:
    """Half of a layer is beyond the budget: neither it whole nor a combination with it is planned."""
    priced: list[Any] = []

    def watched(job: Evaluation) -> dict[str, Any]:
        if not job.trials and job.update is not None:
            priced.append(job.update)
        return fake(job)

    effort = replace(EFFORT, affordable=True, generations=0)
    findings = run(None, watched, budgets=("memory=head+30%",), effort=effort).findings
    layers = [unit for unit in found().findings.units if unit.kind == "layer"]
    beyond = {unit.name.split()[0] for unit in layers} - {unit.name.split()[0] for unit in findings.units}
    assert beyond
    assert any(isinstance(update, dict) and beyond & update.keys() for update in priced)
    assert not any(
        isinstance(update, dict) and update.get(name) == 1.0 and len(update) == 2
        for update in priced
        for name in beyond
    )


def test_of_the_scheme_of_the_architecture_the_last_blocks_that_fit_are_tried() -> None:
    """Without its first block; the best where gains add up has biases too, which cost next to nothing here."""
    prior = {"block_0/w": 1.0, "block_1/w": 0.25, "block_2/w": 0.25}
    effort = replace(EFFORT, generations=0, combinations=1)

    def names(budget: str) -> set[str]:
        return {t.name for t in run(None, budgets=(budget,), effort=effort, prior=prior).findings.trained}

    shorter, whole = "block_1/w 1/4, block_2/w 1/4, head", "block_0/w 1, block_1/w 1/4, block_2/w 1/4, head"
    assert shorter in names("memory=2050B")
    assert shorter not in names("memory=1900B")
    assert shorter in (all_fit := names("memory=100%"))
    assert whole not in all_fit  # it has a name


def test_schemes_with_names_alone() -> None:
    asked: list[Evaluation] = []

    def watched(job: Evaluation) -> dict[str, Any]:
        asked.append(job)
        return fake(job)

    prior = {"block_1/w": 1.0, "block_2/w": 1.0}
    found = run(None, watched, effort=replace(EFFORT, named=True), prior=prior)
    assert {t.name for t in found.findings.trained} == {*NAMED, "block_2/w 1, head"}
    assert all(job.update is not None for job in asked)
    assert found.findings.found.mean == max(t.mean for t in found.findings.trained if t.within)
    json.dumps(found.to_json(), allow_nan=False)


def test_what_can_be_chosen_of_the_scheme_of_the_architecture_is_tried_where_not_all_of_it_can() -> None:
    prior = {"block_1/w": 1.0, "block_2/w": 0.9}
    found = run(None, budgets=("memory=100%",), effort=replace(EFFORT, named=True), prior=prior)
    assert "block_1/w 1, block_2/w 1/4, head" in {t.name for t in found.findings.trained}


def test_what_a_scheme_grants_is_shortened_block_by_block() -> None:
    assert space().shortened(
        {"block_0/b": 1.0, "block_1/b": 0.0, "block_1/w": 1.0, "block_2/w": 0.9, "block_2/b": 1.0}
    ) == [
        Candidate(1, (0.0, 1.0, 0.25)),
        Candidate(1, (0.0, 0.0, 0.25)),
    ]
    assert space().shortened({"head/w": 1.0}) == []


def test_what_diverges_is_no_part_of_what_is_found() -> None:
    def diverging(job: Evaluation) -> dict[str, Any]:
        result = fake(job)
        if job.trials and not isinstance(job.update, str) and job.update is not None and "block_2/w" in job.update:
            return {"scores": [None] * len(job.trials)}
        return result

    findings = run(None, diverging).findings
    assert "block_2/w 1" not in findings.gains
    assert not any("block_2/w" in t.update for t in findings.trained if not isinstance(t.update, str))
