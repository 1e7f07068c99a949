"""A Flower project for a program: its server with a strategy of Flower's own, and the clients of its simulation."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Literal, get_args

from converter.federated.arrays import Exchange
from converter.program.file import read_program
from converter.support.errors import UsageError

StrategyName = Literal["fedavg", "fedprox", "fedadam"]
#: Flower's class of a strategy.
_CLASSES = {"fedavg": "FedAvg", "fedprox": "FedProx", "fedadam": "FedAdam"}
_TEMPLATES = Path(__file__).with_name("template")
#: Where each template goes.
_FILES = {"pyproject.toml": "", "README.md": "", "Caddyfile": "", "server.py": "federation", "client.py": "federation"}


@dataclass(frozen=True)
class Project:
    """What to write.

    Attributes:
        program: the `.tflite`.
        strategy: of Flower.
        rounds: how many.
        nodes: that a round waits for.
        epochs: of a client in a round.
        learning_rate: of a client; None: the program's own.
        proximal_mu: of FedProx.
        server_rate: of FedAdam.
        held_out: an .npz to evaluate on after each round; None: on nothing.
        clients: a folder of .npz files, one for each client of a simulation; None: none.
        personal: patterns of tensors that stay with the clients.
    """

    program: Path
    strategy: StrategyName = "fedavg"
    rounds: int = 10
    nodes: int = 2
    epochs: int = 1
    learning_rate: float | None = None
    proximal_mu: float = 0.01
    server_rate: float = 0.1
    held_out: Path | None = None
    clients: Path | None = None
    personal: tuple[str, ...] = ()

    def write(self, folder: Path) -> Exchange:
        """Write the project into a new folder; return what travels in its rounds.

        Raises:
            UsageError: the program is none that several can train, a file is missing, there is no such strategy, or the
                folder holds something.
        """
        if self.strategy not in _CLASSES:
            raise UsageError(
                f"strategy must be {', '.join(get_args(StrategyName))}, got {self.strategy!r}: any other of "
                "Flower's can be written into the project's server.py",
                page="federated",
            )
        exchange = Exchange(read_program(self.program), personal=self.personal)
        if self.strategy == "fedprox" and not exchange.has_proximal:
            raise UsageError(
                f"{self.program} was built without FedProx's term: build it with proximal=0.01 (--proximal 0.01)",
                page="federated",
            )
        for needed in (self.held_out, self.clients):
            if needed is not None and not needed.exists():
                raise UsageError(f"no such file or folder: {needed}", page="federated")
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder} holds something: name a new folder", page="federated")
        (folder / "federation").mkdir(parents=True)
        (folder / "federation/__init__.py").touch()
        (folder / "clients").mkdir()
        for source, target in self._copies():
            shutil.copyfile(source, folder / target)
        values = self._values(folder.resolve(), exchange)
        for name, where in _FILES.items():
            text = Template((_TEMPLATES / f"{name}.txt").read_text()).substitute(values)
            (folder / where / name).write_text(text)
        return exchange

    def _copies(self) -> Iterator[tuple[Path, str]]:
        yield self.program, "program.tflite"
        if self.held_out is not None:
            yield self.held_out, "held_out.npz"
        for file in sorted(self.clients.glob("*.npz")) if self.clients is not None else ():
            yield file, f"clients/{file.name}"

    def _values(self, folder: Path, exchange: Exchange) -> dict[str, str]:
        """Return what stands for each name of the templates."""
        keywords, own = {
            "fedavg": ("", ""),
            "fedprox": ('proximal_mu=run["proximal-mu"],', f"proximal-mu = {float(self.proximal_mu)} # FedProx's"),
            "fedadam": ('eta=run["server-rate"],', f"server-rate = {float(self.server_rate)} # FedAdam's"),
        }[self.strategy]
        names = [f"{name} {list(one.shape)}" for name, one in exchange.trained.items()]
        return {
            "name": re.sub(r"[^a-z0-9]+", "-", self.program.stem.lower()).strip("-") or "program",
            "program": self.program.name,
            "folder": json.dumps(str(folder)),
            "strategy": _CLASSES[self.strategy],
            "keywords": keywords and f"\n        {keywords}",
            "own": own,
            "personal": f", personal={json.dumps(self.personal)}" if self.personal else "",
            "rounds": str(self.rounds),
            "nodes": str(self.nodes),
            "epochs": str(self.epochs),
            "rate": str(float(self.learning_rate or 0)),
            "nbytes": f"{exchange.nbytes():,}",
            "arrays": str(len(names)),
            "names": ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else ""),
            "clients": str(max(len(list((folder / "clients").glob("*.npz"))), 2)),
        }
