"""Storage of a leaf on disk: phones, rounds, and their requests and answers, in SQLite."""

from __future__ import annotations

import fcntl
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from converter.support.errors import UsageError

_TABLES = """
CREATE TABLE IF NOT EXISTS phones(node INTEGER PRIMARY KEY, key BLOB UNIQUE, beat REAL, seen REAL, until REAL);
CREATE TABLE IF NOT EXISTS stamps(key BLOB, stamp TEXT, at REAL, PRIMARY KEY(key, stamp)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS stamps_at ON stamps(at);
CREATE TABLE IF NOT EXISTS rounds(
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, kind TEXT, message BLOB, opened REAL, places INTEGER,
    mean BLOB, open INTEGER DEFAULT 1
);
CREATE TABLE IF NOT EXISTS asked(
    id TEXT PRIMARY KEY, node INTEGER, round INTEGER, head BLOB, state TEXT, session TEXT, tree BLOB, reply BLOB,
    reason TEXT DEFAULT ''
);
CREATE INDEX IF NOT EXISTS asked_node ON asked(node, round);
CREATE INDEX IF NOT EXISTS asked_round ON asked(round, state);
CREATE TABLE IF NOT EXISTS objects(asked TEXT, id TEXT, content BLOB, PRIMARY KEY(asked, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS answers(asked TEXT PRIMARY KEY, arrays BLOB, figures TEXT);
"""
_VERSION = 1


class Store:
    """One file and one connection, which threads share in turns; whatever is in a `with store.turn()` happens or not.

    A process that is killed loses nothing that a call has answered for; a machine that loses power may lose the last
    second, and never more than that.
    """

    def __init__(self, folder: Path) -> None:
        """Opens the file, or makes it.

        Raises:
            UsageError: another leaf has the folder, or the file is of another version.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # the leaf's key is in it
        self._held = (folder / "lock").open("w")
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._held.close()
            raise UsageError(f"another leaf is at work in {folder}: give each a folder", page="federated") from None
        self._lock = threading.RLock()
        self._depth = 0
        self._sql = sqlite3.connect(folder / "leaf.sqlite", isolation_level=None, check_same_thread=False)
        try:
            self._begin(folder)
        except sqlite3.DatabaseError as error:
            raise UsageError(f"{folder / 'leaf.sqlite'} is no state of a leaf: {error}", page="federated") from None

    def _begin(self, folder: Path) -> None:
        self._sql.execute("PRAGMA journal_mode=WAL")
        self._sql.execute("PRAGMA synchronous=NORMAL")
        found = self._sql.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, _VERSION):
            raise UsageError(f"{folder} is the state of another version of the leaf: take a new one", page="federated")
        self._sql.executescript(f"{_TABLES}; PRAGMA user_version = {_VERSION};")

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have the file for oneself: all changes in it are written together, none of them where it raises."""
        with self._lock:
            self._depth += 1
            try:
                if self._depth == 1:
                    self._sql.execute("BEGIN IMMEDIATE")
                yield
                if self._depth == 1:
                    self._sql.execute("COMMIT")
            except BaseException:
                if self._depth == 1 and self._sql.in_transaction:
                    self._sql.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1

    def put(self, statement: str, *values: Any) -> int:
        """Run a statement that changes something; return how many rows it changed."""
        with self._lock:
            return self._sql.execute(statement, values).rowcount

    def one(self, question: str, *values: Any) -> Any:
        """Return the first row, or None."""
        with self._lock:
            return self._sql.execute(question, values).fetchone()

    def all(self, question: str, *values: Any) -> list[Any]:
        """Return all rows."""
        with self._lock:
            return self._sql.execute(question, values).fetchall()

    def close(self) -> None:
        """Gives the file and the folder back."""
        with self._lock:
            self._sql.close()
            self._held.close()
