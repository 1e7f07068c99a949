"""The page in headless Chromium: drawn quickly, quiet, loading nothing, and of use with keys alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import converter
from converter.runtime.engines.web import find_chromium
from tests.tools.report.chromium import Window
from tests.tools.report.programs import NAMES, program
from tests.tools.report.test_page import HOSTILE, hostile

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium: apt-get install chromium")
#: Seconds of the page's main thread until it is drawn; not of the clock, since other tests run meanwhile.
QUICK = 2.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Window]:
    with Window() as browser:
        browser.call("Performance.enable", timeDomain="threadTicks")
        yield browser


def opened(browser: Window, data: bytes, folder: Path) -> Path:
    page = converter.report(data, folder / "report.html")
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(page)
    return page


def shown(browser: Window, selector: str) -> str:
    return str(browser.run(f"document.querySelector({selector!r}).innerText"))


@pytest.mark.parametrize("name", NAMES)
def test_it_is_drawn_at_once_and_asks_for_nothing(browser: Window, name: str, tmp_path: Path) -> None:
    browser.look(1280)
    page = opened(browser, program(name).data, tmp_path)
    metrics = {m["name"]: m["value"] for m in browser.call("Performance.getMetrics")["metrics"]}
    assert metrics["TaskDuration"] < QUICK
    assert page.stat().st_size < 3 << 20
    assert name != "llama" or browser.run("report.memory[0].layer.length") > 3000
    # Something was painted: the graph and the memory are canvases with more than one colour.
    colours = """(place) => {
        const found = new Set();
        for (const canvas of document.querySelectorAll(place + " canvas")) {
            const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            for (let i = 0; i < pixels.length; i += 40) found.add(pixels.slice(i, i + 4).join());
        }
        return found.size;
    }"""
    assert browser.run(f"({colours})('#graph')") > 3
    assert browser.run(f"({colours})('#timeline')") > 3
    browser.look(390)
    browser.open(page)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    assert browser.complaints == []
    assert browser.requests == [page.as_uri()] * 2


@pytest.mark.quick
def test_costs_fit_the_page_and_their_bars_begin_at_one_place(browser: Window, tmp_path: Path) -> None:
    browser.look(1280)
    opened(browser, program("llama").data, tmp_path)
    place = "document.querySelector('.costs').parentNode"
    assert browser.run(f"{place}.scrollWidth <= {place}.clientWidth")
    lefts = "[...document.querySelectorAll('.costs .bars')].map(bar => bar.getBoundingClientRect().left)"
    assert browser.run(f"new Set({lefts}).size") == 1
    assert browser.run("document.querySelectorAll('#stacked .key').length") > 1
    browser.look(390)
    opened(browser, program("mlp").data, tmp_path)
    style = f"getComputedStyle({place}).backgroundImage"
    assert browser.run(f"{place}.scrollWidth > {place}.clientWidth")
    assert "gradient" in browser.run(style)


def test_it_is_clicked_through(browser: Window, tmp_path: Path) -> None:
    browser.look(1280, dark=True)
    opened(browser, program("llama").data, tmp_path)
    browser.click("#close-all")
    browser.click("#search")
    browser.press(*"layers/7/ffn")
    assert "layers/7/ffn" in shown(browser, "#details")
    assert "gate" in shown(browser, "#details")
    browser.press("Enter")
    assert "2 of 2 found" in shown(browser, "#details")
    browser.run("document.querySelector('#search').value = ''")
    for button in ("[data-zoom=in]", "[data-zoom=out]", "[data-zoom=fit]", "#open-all", "#close-all"):
        browser.click(button)
    browser.click("#to-peak")
    assert "the peak" in shown(browser, "#now")
    browser.run("document.querySelector('#operator').value = 0")
    browser.run("document.querySelector('#operator').dispatchEvent(new Event('input'))")
    assert shown(browser, "#now").startswith("operator 1 of ")
    for stack in ("phase", "kind", "layer", "group"):
        browser.run(f"document.querySelector('#stack').value = '{stack}'")
        browser.run("document.querySelector('#stack').dispatchEvent(new Event('change'))")
        assert "the peak" in shown(browser, "#now")
    largest = "document.querySelector('.sortable tbody tr:first-child td:last-child').innerText"
    most = browser.run(largest)
    browser.click(".sortable th:last-child button")
    least = browser.run(largest)
    browser.click(".sortable th:last-child button")
    assert float(most.rstrip(" %")) > float(least.rstrip(" %"))
    assert browser.run(largest) == most
    assert browser.complaints == []


def test_keys_alone_are_enough(browser: Window, tmp_path: Path) -> None:
    browser.look(1280)
    opened(browser, program("llama").data, tmp_path)
    for _ in range(40):
        browser.press("Tab")
        if browser.run("document.activeElement.id") == "graph":
            break
    assert browser.run("document.activeElement.id") == "graph"
    browser.press("ArrowDown", "ArrowDown", "ArrowDown")
    first = shown(browser, "#details")
    browser.press("ArrowDown", "ArrowRight", "ArrowLeft", "ArrowUp", "+", "-", "0")
    assert "trains" in first
    browser.run("document.querySelector('#close-all').click()")
    browser.run("document.querySelector('#graph').focus()")
    for _ in range(6):
        browser.press("ArrowDown")
        if "Open this group" in shown(browser, "#details"):
            break
    browser.press("Enter")
    assert "Close this group" in shown(browser, "#details")
    assert browser.complaints == []


def test_names_of_layers_are_text(browser: Window, tmp_path: Path) -> None:
    browser.look(1280)
    page = opened(browser, hostile(), tmp_path)
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert HOSTILE.partition("/")[0] in browser.run("document.body.textContent")
    assert browser.complaints == []
    assert browser.requests == [page.as_uri()]


def test_it_is_printed_in_light_with_all_that_is_folded(browser: Window, tmp_path: Path) -> None:
    browser.look(1280, dark=True)
    opened(browser, program("mlp").data, tmp_path)
    screen = browser.run("colour('paper')")
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run("colour('paper')") == "#fff"
    assert browser.run("[...document.querySelectorAll('details')].every(each => each.open)")
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("colour('paper')") == screen != "#fff"
    assert browser.call("Page.printToPDF")["data"]
    assert browser.complaints == []
