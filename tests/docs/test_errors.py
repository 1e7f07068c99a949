"""Every refusal names a page of docs/errors/ that is there, and every page is about something that is refused."""

from __future__ import annotations

import pickle

import pytest

import converter
from converter.cli import main
from converter.cli.failures import explain
from converter.support.errors import NumericError, UnsupportedError, UsageError
from converter.support.invocation import command
from scripts.pages.refusals import index, listed, refusals, refusals_of
from tests.tree import ROOT

PAGES_THERE = {path.stem for path in (ROOT / "docs/errors").glob("*.md")}


@pytest.mark.quick
def test_each_kind_of_refusal_has_a_page_and_each_page_a_kind() -> None:
    found = refusals()
    assert len(found) > 300, "the scan misses what the code raises"
    assert not [refusal for refusal in found if refusal.page not in PAGES_THERE]
    assert {refusal.page for refusal in found} == PAGES_THERE


def test_a_planted_refusal_without_a_page_is_found() -> None:
    (planted,) = refusals_of("def f(name):\n    raise UsageError(f'no {name} here')", "converter.unheard_of")
    assert (planted.page, planted.message) == ("", "no … here")
    (planted,) = refusals_of("raise UsageError('no', page='losses')", "converter.unheard_of")
    assert planted.page == "losses"


def test_a_refusal_says_where_it_is_explained() -> None:
    with pytest.raises(UsageError) as caught:
        converter.runtime.TrainingSession("there_is_none.tflite")
    assert caught.value.page == "program-files"
    assert "more:" not in str(caught.value), "the message is what it was"
    message, code = explain(caught.value)
    assert message.endswith(f"\nmore: {command('explain program-files')}")
    assert code == 2


@pytest.mark.quick
def test_the_page_is_shown_and_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*arguments: str) -> str:
        with pytest.raises(SystemExit):
            main(["explain", *arguments])
        return capsys.readouterr().out

    for page in PAGES_THERE:
        assert shown(page) == (ROOT / f"docs/errors/{page}.md").read_text().rstrip() + "\n"
    assert {line.split()[0] for line in shown().splitlines()} == PAGES_THERE
    assert shown("no-such-page") == ""


def test_the_page_survives_another_process() -> None:
    with pytest.raises(UsageError) as caught:
        converter.LoRA(rank=0)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.page, again.__notes__) == ("adapters", [f"more: {command('explain adapters')}"])


def test_errors_of_other_code_have_the_page_of_their_class_or_none() -> None:
    assert NumericError("x").page == "numbers"
    error = UnsupportedError("x")
    assert error.page == ""
    assert explain(error) == ("x", 3)


@pytest.mark.quick
def test_messages_are_listed_on_their_page() -> None:
    found = refusals()
    assert ".tflite file ends at 2 GiB" in listed("file-size", found)
    assert ".tflite file ends at 2 GiB" not in listed("losses", found)
    assert "| [Sizes](file-size.md) | `errors/file-size` | `UnsupportedError` (3), `UsageError` (2) |" in index(
        {"file-size": "Sizes"}, found
    )
