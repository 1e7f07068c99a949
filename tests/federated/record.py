"""Records a round of the wire: what a client and an unmodified SuperLink say to each other.

    python -m tests.federated.record

It writes `tests/federated/recorded`: the program, what is known of it (`expected.json`), the client's rows, and the
calls in their order (`round.jsonl`), which the tests of the Kotlin client replay. Needs Flower
(`scripts/flower/install`).
"""

from __future__ import annotations

import base64
import dataclasses
import http.client
import json
import shutil
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jax
import numpy as np

import converter
import jax_frontend
from converter.federated import Exchange, identity
from converter.federated.arrays import identity_of
from converter.program.file import read_program
from converter.runtime import TrainingSession
from tests.federated.flower import Link, ended, superlink

RECORDED = Path(__file__).resolve().parent / "recorded"


class _Handler(BaseHTTPRequestHandler):
    """Passes calls on to a SuperLink, and writes them down."""

    server: _Recorder
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        behind = http.client.HTTPConnection(self.server.address, timeout=60)
        behind.request("POST", self.path, body, {k: v for k, v in self.headers.items() if k.lower() != "host"})
        answer = behind.getresponse()
        content = answer.read()
        self.server.calls.append((self.path.rpartition("/")[2], body, content))
        self.send_response(answer.status)
        for name in ("content-type", "date"):
            if value := answer.headers.get(name):
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class _Recorder(ThreadingHTTPServer):
    def __init__(self, address: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = address
        self.calls: list[tuple[str, bytes, bytes]] = []


def record(folder: Path, out: Path) -> None:
    """Run one round with one client; keep the calls that do something."""
    rng = np.random.default_rng(0)
    params = {"hidden": {"w": rng.normal(0, 0.3, (8, 4))}, "head": {"w": rng.normal(0, 0.3, (4, 3)), "b": np.zeros(3)}}
    params = jax.tree.map(lambda p: p.astype(np.float32), params)
    model = jax_frontend.Model(
        lambda p, x: jax.numpy.tanh(x @ p["hidden"]["w"]) @ p["head"]["w"] + p["head"]["b"],
        params,
        inputs=[jax.ShapeDtypeStruct((1, 8), np.float32)],
    )
    program = converter.build(model, update="head", batch=8, loss="sparse_categorical_crossentropy", check=False)
    program.write(folder / "program.tflite")
    (folder / "people").mkdir()
    x = rng.normal(size=(20, 8)).astype(np.float32)
    np.savez(folder / "people/0.npz", x=x, y=x[:, :3].argmax(1).astype(np.int32))
    with superlink(folder / "flower") as link:
        calls = _round(link, folder)
    out.mkdir(exist_ok=True)
    shutil.copy(folder / "people/0.npz", out / "rows.npz")
    program.write(out / "program.tflite")
    lines = [
        {"call": call, "request": base64.b64encode(asked).decode(), "response": base64.b64encode(answer).decode()}
        for call, asked, answer in calls
        if call != "send-node-heartbeat" and (call != "pull-messages" or answer)
    ]
    (out / "round.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    exchange = Exchange(read_program(program.data))
    with TrainingSession(program.data) as session:
        arrays = exchange.sent(session.state())
    known = {
        "identity": identity(program.data),
        "labelled": identity_of(dataclasses.replace(program.manifest, labels=("a", "ü", "c"))),
        "norm": exchange.norm,
        "bytes": exchange.nbytes(),
        "arrays": {name: {"shape": list(a.shape), "numbers": a.reshape(-1).tolist()} for name, a in arrays.items()},
    }
    (out / "expected.json").write_text(json.dumps(known, indent=1) + "\n")


def _round(link: Link, folder: Path) -> list[tuple[str, bytes, bytes]]:
    recorder = _Recorder(link.address)
    threading.Thread(target=recorder.serve_forever, daemon=True).start()
    command = ["python", "-m", "pocketune", "federated", "server", "program.tflite", "--out", "server"]
    link.run(*command, "--rounds", "1", "--min-nodes", "1", "--epochs", "2", "--learning-rate", "0.1", at=folder)
    seen = dataclasses.replace(link, address=f"127.0.0.1:{recorder.server_port}")
    client = seen.client(folder / "program.tflite", folder / "people/0.npz")
    link.run("flwr", "run", ".", "here", "--stream", at=folder / "server", seconds=240)
    ended([client])
    recorder.shutdown()
    return recorder.calls


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        record(Path(made), RECORDED)
