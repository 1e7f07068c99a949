"""A Python client and a page in headless Chromium, through Caddy, in rounds of an unmodified SuperLink."""

from __future__ import annotations

import http.client
from pathlib import Path

import pytest

from tests.federated.flower import ended, needs_flower, superlink
from tests.federated.pages import Tab, door, lay_out, needs_caddy, needs_page
from tests.federated.people import built, rows_of, write_rows
from tests.federated.test_rounds import matches, project

pytestmark = [needs_flower, needs_caddy]


@needs_page
@pytest.mark.slow
def test_a_page_and_a_computer_train_one_model(tmp_path: Path) -> None:
    program = built("sparse")
    program.write(tmp_path / "program.tflite")
    files = write_rows(tmp_path / "people", 2)
    with superlink(tmp_path / "flower") as link:
        server = project(link, tmp_path, nodes=2, rounds=2)
        lay_out(server / "page", tmp_path / "program.tflite", rows_of(1))
        with door(link, server) as site:
            tab = Tab(site)
            try:
                tab.until("waits for work")
                computer = link.client(tmp_path / "program.tflite", files[0])
                log = link.run("flwr", "run", ".", "here", "--stream", at=server, seconds=240)
                ended([computer])
            finally:
                tab.close()
    assert "Received 2 results and 0 failures" in log
    assert sum("bytes left this device" in line for line in tab.said) == 4, tab.said
    matches(program, server, people=2, rounds=2)


@pytest.mark.quick
def test_the_door_passes_what_clients_call_and_nothing_else(tmp_path: Path) -> None:
    """Whatever way a path of another API is written."""
    built("head").write(tmp_path / "program.tflite")
    write_rows(tmp_path / "people", 1)
    with superlink(tmp_path / "flower") as link:
        server = project(link, tmp_path, nodes=2, rounds=1)
        (server / "page").mkdir()
        (server / "page/index.html").write_text("a page")
        (server / "page/.secret").write_text("a secret")
        with door(link, server) as site:
            assert answered(link.address, "POST", "/v1/control/list-runs") == "uvicorn", "it is there, behind the door"
            assert answered(site, "POST", "/v1/fleet/pull-messages") == "uvicorn"
            for method, path in (
                *(
                    ("GET", path)
                    for path in ("/", "/docs", "/v1/fleet/pull-messages", "/.secret", "/../pyproject.toml")
                ),
                *(("POST", f"/v1/{path}") for path in ("control/list-runs", "runtime/pull-task", "fleet/", "fleet")),
                *(("POST", f"/v1/fleet/{path}") for path in ("../control/list-runs", "%2e%2e/control/list-runs")),
                *(("POST", f"{path}/v1/control/list-runs") for path in ("/", "/v1/fleet/pull-messages/../../..")),
            ):
                assert answered(site, method, path) != "uvicorn", path
            assert answered(site, "GET", "/", "a page") == "Caddy"


def answered(address: str, method: str, path: str, body: str = "") -> str:
    """Return which server answered; with `body` it must be that."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    connection.request(method, path, b"")
    answer = connection.getresponse()
    content = answer.read().decode(errors="replace")
    connection.close()
    assert body in content
    assert "secret" not in content
    # Caddy names itself beside the server that it asked.
    return "uvicorn" if "uvicorn" in answer.headers.get_all("server", []) else "Caddy"
