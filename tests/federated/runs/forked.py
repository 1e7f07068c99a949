"""Commands of `pocketune` in processes that begin at once: what takes seconds to import is there before they fork.

    python -m tests.federated.runs.forked

Each line of the standard input is a list in JSON: a file for what the command says, and its arguments. The answer is
the number of its process. A process that is killed is gone at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module

#: What a leaf imports when it begins.
for _name in ("flwr.app", "converter.cli", "converter.federated.leaf", "uvicorn.protocols.http.auto", "sqlite3"):
    import_module(_name)


def become(log: str, arguments: list[str]) -> None:
    """Run a command in this process, which ends with it."""
    from converter.__main__ import main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.argv = ["pocketune", *arguments]
    main()


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while line := sys.stdin.readline():
        where, *command = json.loads(line)
        if child := os.fork():
            print(child, flush=True)
        else:
            become(where, command)
