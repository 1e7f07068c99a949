"""The quick run takes little of each test, all of what is marked, and the list names what is there."""

import ast
import json
from functools import cache
from pathlib import Path

import pytest

from tests.tiers import LIST, Cost, name_of, read_costs, slow_cases

ROOT = Path(__file__).parents[1]


def test_the_cheapest_case_is_quick_and_others_as_far_as_they_go() -> None:
    costs = [Cost(f"t.py::a[{n}]", seconds, quick=False) for n, seconds in enumerate((0.9, 0.3, 0.2, 0.4, 0.1))]
    assert slow_cases(costs) == ["t.py::a[0]"]
    assert slow_cases([Cost("t.py::a[x]", 1.9, quick=False), Cost("t.py::a[y]", 2.1, quick=False)]) == ["t.py::a[y]"]


@pytest.mark.parametrize(("quick", "slow"), [(False, ["t.py::b"]), (True, [])])
def test_what_is_expensive_is_slow_unless_it_is_marked(quick: bool, slow: list[str]) -> None:
    assert slow_cases([Cost("t.py::b", 2.1, quick), Cost("t.py::c", 1.9, quick=False)]) == slow


def test_a_case_that_two_gates_took_counts_once(tmp_path: Path) -> None:
    for number, seconds in enumerate((40.0, 0.0)):
        cost = {"case": "t.py::a[x]", "seconds": seconds, "quick": True}
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(cost) + "\n")
    assert read_costs(tmp_path) == [Cost("t.py::a[x]", 40.0, quick=True)]
    assert slow_cases(read_costs(tmp_path)) == []


def test_no_listed_case_is_in_a_run_without_the_slow_ones(request: pytest.FixtureRequest) -> None:
    listed = set(LIST.read_text(encoding="utf-8").splitlines())
    assert all(item.get_closest_marker("slow") for item in request.session.items if item.nodeid in listed)


def test_listed_tests_are_there() -> None:
    """Parameters are not looked at: a case that is renamed is quick until the list is written again."""
    listed = {name_of(case) for case in LIST.read_text(encoding="utf-8").splitlines()}
    assert [test for test in sorted(listed) if test.split("::")[-1] not in _tests(ROOT / test.split("::")[0])] == []


@cache
def _tests(path: Path) -> set[str]:
    if not path.exists():
        return set()
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
