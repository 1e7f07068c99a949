"""The device's shell: a small one, with pipes, redirections and variables.

A command is a function f(sh, args) -> exit status (None means 0), registered under its name. What is not registered
says "inaccessible or not found" and returns 127, as mksh does.
"""

from __future__ import annotations

import fnmatch
import io
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tests.harness.fake.device import FakeDevice

OPERATORS = ("2>&1", "&&", "||", "2>>", "2>", ">>", ">", "<", ";", "|", "\n", "&")

Command = Callable[["Shell", list[str]], int | None]
COMMANDS: dict[str, Command] = {}


def command(*names: str) -> Callable[[Command], Command]:
    """Registers a command under its names."""

    def register(function: Command) -> Command:
        COMMANDS.update(dict.fromkeys(names, function))
        return function

    return register


class Streams(Protocol):
    """Standard streams of a command."""

    closed: threading.Event

    def out(self, data: str | bytes) -> None: ...

    def err(self, data: str | bytes) -> None: ...

    def read(self, size: int = -1) -> bytes: ...


class Redirected:
    """The streams of a command in a pipe or with redirections; what is not redirected goes to the outer ones."""

    def __init__(self, outer: Streams, stdin: bytes | None, keeps: bool, quiet: bool, merge: bool) -> None:
        self.outer, self.keeps, self.quiet, self.merge = outer, keeps, quiet, merge
        self.stdin = None if stdin is None else io.BytesIO(stdin)
        self.kept = bytearray()
        self.closed = outer.closed

    def out(self, data: str | bytes) -> None:
        if self.keeps:
            self.kept += data.encode() if isinstance(data, str) else data
        else:
            self.outer.out(data)

    def err(self, data: str | bytes) -> None:
        if self.merge:
            self.out(data)
        elif not self.quiet:
            self.outer.err(data)

    def read(self, size: int = -1) -> bytes:
        return self.outer.read(size) if self.stdin is None else self.stdin.read(size)


class Shell:
    """What one command sees: the device, where it is, and its streams."""

    def __init__(self, device: FakeDevice, io: Streams) -> None:
        self.device, self.io = device, io
        self.cwd, self.env, self.status = "/", {"EXTERNAL_STORAGE": "/sdcard"}, 0

    def path(self, name: str) -> str:
        return str(PurePosixPath(self.cwd) / name)

    def local(self, name: str) -> Path:
        return self.device.local(self.path(name))

    def out(self, data: str | bytes) -> None:
        self.io.out(data)

    def fail(self, message: str, code: int = 1) -> int:
        self.io.err(message + "\n")
        return code


def tokens(script: str, sh: Shell) -> Iterator[tuple[bool, str]]:
    """Yields (is_operator, text). Quoted wildcards are escaped as [*] so they stay literal."""
    word, i = None, 0

    def expand(at: int) -> tuple[str, int]:
        match = re.compile(r"\$(\?|\w+|\{\w+\})").match(script, at)
        if not match:
            return "$", at + 1
        name = match[1].strip("{}")
        return (str(sh.status) if name == "?" else sh.env.get(name, "")), match.end()

    def literal(text: str) -> str:
        return re.sub(r"([*?\[])", r"[\1]", text)

    while i < len(script):
        c = script[i]
        operator = next((o for o in OPERATORS if script.startswith(o, i) and not (o[0] == "2" and word)), None)
        if c in " \t" or operator:
            if word is not None:
                yield False, word
            if operator:
                yield True, operator
            word, i = None, i + len(operator or c)
            continue
        word = word or ""
        if c == "'":
            end = script.find("'", i + 1)
            word, i = word + literal(script[i + 1 : end]), end + 1
        elif c == '"':
            i += 1
            while i < len(script) and script[i] != '"':
                if script[i] == "$":
                    value, i = expand(i)
                    word += literal(value)
                else:
                    i += script[i] == "\\"
                    word, i = word + literal(script[i]), i + 1
            i += 1
        elif c == "\\":
            word, i = word + literal(script[i + 1 : i + 2]), i + 2
        elif c == "$":
            value, i = expand(i)
            word += value
        else:
            word, i = word + c, i + 1
    if word is not None:
        yield False, word


#: A word or an operator of a pipeline.
Token = tuple[bool, str]


def run_script(device: FakeDevice, script: str, streams: Streams) -> int:
    """Runs `a && b || c; d | e > f`. tokens() is lazy, so $? and variables are up to date."""
    sh, skip = Shell(device, streams), False
    pipeline: list[list[Token]] = [[]]
    for is_operator, text in itertools.chain(tokens(script, sh), [(True, ";")]):
        if is_operator and text in (";", "\n", "&&", "||", "&"):
            if any(pipeline) and not skip:
                sh.status = run_pipeline(sh, pipeline)
                if sh.env.pop("__exit", None):
                    return sh.status
            pipeline = [[]]
            skip = (text == "&&" and sh.status != 0) or (text == "||" and sh.status == 0)
        elif is_operator and text == "|":
            pipeline.append([])
        else:
            pipeline[-1].append((is_operator, text))
    return sh.status


def run_pipeline(sh: Shell, parts: list[list[Token]]) -> int:
    """Runs the commands of a pipeline one after the other; the exit status is the last one's."""
    stdin, outer, code = None, sh.io, 0
    for part in parts:
        words: list[str] = []
        target, append, quiet, merge = "", False, False, False
        queue = iter(part)
        for is_operator, text in queue:
            if not is_operator:
                words += glob(sh, text)
            elif text == "2>&1":
                merge = True
            elif text in (">", ">>"):
                target, append = unescape(next(queue)[1]), text == ">>"
            elif text in ("2>", "2>>"):
                quiet = bool(next(queue))
            elif text == "<":
                source = unescape(next(queue)[1])
                stdin = b"" if source == "/dev/null" else sh.local(source).read_bytes()
        while words and re.match(r"^\w+=", words[0]):
            name, _, value = words.pop(0).partition("=")
            sh.env[name] = value
        is_last = part is parts[-1]
        redirected = Redirected(outer, stdin, not is_last or bool(target), quiet, merge)
        sh.io = redirected
        try:
            code = run_words(sh, words)
            if target and target != "/dev/null":
                sh.device.check_writable(sh.path(target))
                with sh.local(target).open("ab" if append else "wb") as file:
                    file.write(redirected.kept)
        except OSError as error:
            name = sh.device.remote(Path(error.filename)) if error.filename else target
            redirected.err(f"{words[0] if words else 'sh'}: {name}: {error.strerror}\n")
            code = 1
        finally:
            sh.io = outer
        stdin = b"" if target else bytes(redirected.kept)
    return code


def unescape(word: str) -> str:
    return re.sub(r"\[([*?\[])\]", r"\1", word)


def glob(sh: Shell, word: str) -> list[str]:
    """The paths that a word means: itself, unless it has wildcards and something matches."""
    if not re.search(r"[*?]", re.sub(r"\[[*?\[]\]", "", word)):
        return [unescape(word)]
    found = ["/" if word.startswith("/") else ""]
    for part in PurePosixPath(word).parts[word.startswith("/") :]:
        found = [
            f"{folder.rstrip('/')}/{path.name}" if folder else path.name
            for folder in found
            if sh.local(folder or ".").is_dir()
            for path in sorted(sh.local(folder or ".").iterdir())
            if fnmatch.fnmatchcase(path.name, part)
        ]
    return found or [unescape(word)]


def run_words(sh: Shell, words: list[str]) -> int:
    while words and words[0] in ("exec", "command", "nohup", "time"):
        words = words[1:]
    if not words:
        return 0
    name = PurePosixPath(words[0]).name
    if name not in COMMANDS:
        return sh.fail(f"/system/bin/sh: {words[0]}: inaccessible or not found", 127)
    return COMMANDS[name](sh, words[1:]) or 0
