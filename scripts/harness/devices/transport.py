"""Running commands on a device and moving files there: the part that differs between adb, ssh and this machine.

Every command ends with a marker that carries its exit status: a connection that breaks in mid-command looks like
success to adb (29: exit 0), so output without its marker is no answer.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scripts.harness.faults import Corrupted, Failed, Fault, Gone, NoLogin, OutOfSpace, Silent

OPENING, MARKER = "POCKETUNE-BEGIN", "POCKETUNE-END"
ATTEMPTS = 3
SHELL_SECONDS = 20.0


@dataclass(frozen=True)
class Reply:
    """What a command said: its exit status, standard output and standard error."""

    code: int
    out: str
    err: str


class Transport(Protocol):
    """A way to a device."""

    name: str

    def shell(self, script: str, seconds: float = SHELL_SECONDS) -> Reply:
        """Runs a script in the device's shell. Raises Gone, Silent or Unauthorized when no whole answer comes."""
        ...

    def send(self, source: Path, target: str) -> None:
        """Copies a file to the device. What arrives may be cut or altered: see `put`."""
        ...

    def fetch(self, source: str, target: Path) -> None:
        """Copies a file from the device."""
        ...

    def recover(self) -> None:
        """Connects again and waits until the shell answers."""
        ...


def run(
    arguments: Sequence[str],
    device: str,
    seconds: float,
    data: bytes = b"",
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Runs a local program. Raises Silent when it does not end in time, Fault when it cannot be run."""
    try:
        # In a session of its own, out of reach of Ctrl-C: the harness ends its jobs in order.
        return subprocess.run(
            arguments,
            input=data,
            capture_output=True,
            timeout=seconds,
            env=environment,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        # A script for the device says more than the program that carries it.
        script = next((a for a in reversed(arguments) if "\n" in a), None)
        asked = (script.splitlines()[0] if script else shlex.join(arguments))[:100]
        raise Silent(device, f"no answer within {seconds:.0f} s to `{asked}`") from None
    except OSError as error:
        raise Fault(device, f"cannot run {arguments[0]} ({error.strerror}): install it, or say where it is") from None


def marked(script: str) -> str:
    """Return the script with the end marker after it."""
    return f"{script}\ncode=$?; echo; echo {MARKER} $code"


def unmarked(output: str, errors: str) -> Reply | None:
    """Return what a marked script said; None when the marker is missing."""
    match = re.search(rf"\r?\n{MARKER} (\d+)\s*$", output)
    return Reply(int(match[1]), output[: match.start()], errors) if match else None


def sha256_of(file: Path) -> str:
    """Hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def put(transport: Transport, file: Path, folder: str) -> str:
    """Sends a file into `folder/HASH/NAME`, unless the same bytes are already there.

    The device itself computes the hash of what arrived; the name appears when it is right, and a name proves nothing.

    Raises:
        OutOfSpace: it does not fit.
        Corrupted: it arrived altered, three times.
        Gone, Silent, Unauthorized: as any command.
    """
    digest, size = sha256_of(file), file.stat().st_size
    target = f"{folder}/{digest[:16]}/{file.name}"
    if _remote_hash(transport, target) == digest:
        return target
    free = free_bytes(transport, folder)
    if free is not None and free < size:
        problem = f"{file.name} has {size:,} bytes, and {free:,} are free"
        raise OutOfSpace(transport.name, problem)
    partial = f"{target}.partial"
    for _ in range(ATTEMPTS):
        # Readable for everyone: the app is another user than the shell.
        parent = shlex.quote(str(Path(target).parent))
        must(transport, f"mkdir -p {parent} && chmod 755 {shlex.quote(folder)} {parent}")
        try:
            transport.send(file, partial)
        except OutOfSpace:
            transport.shell(f"rm -f {shlex.quote(partial)}")
            raise
        if _remote_hash(transport, partial) == digest:
            must(transport, f"chmod 644 {shlex.quote(partial)} && mv {shlex.quote(partial)} {shlex.quote(target)}")
            return target
    transport.shell(f"rm -f {shlex.quote(partial)}")
    raise Corrupted(transport.name, f"{file.name} arrived altered {ATTEMPTS} times")


def must(transport: Transport, script: str, seconds: float = SHELL_SECONDS) -> str:
    """Return the output of a script that has to succeed. Raises OutOfSpace or Failed when it does not."""
    reply = transport.shell(script, seconds)
    if reply.code:
        said = f"{reply.out} {reply.err}".strip()[-200:]
        problem = f"`{script[:100]}` said {said!r} and ended with {reply.code}"
        raise (OutOfSpace if "No space left" in said else Failed)(transport.name, problem)
    return reply.out


def free_bytes(transport: Transport, folder: str) -> int | None:
    """Storage left where the folder is, or will be; None when `df` does not say."""
    out = transport.shell(f"mkdir -p {shlex.quote(folder)}; df -k {shlex.quote(folder)}").out
    rows = [line.split() for line in out.splitlines()[1:]]
    return next((int(row[3]) * 1024 for row in rows if len(row) >= 5 and row[3].isdigit()), None)


def fetch_whole(transport: Transport, source: str, target: Path) -> Path:
    """Fetches a file and compares hashes. Raises Corrupted, and what the transport raises."""
    for _ in range(ATTEMPTS):
        transport.fetch(source, target)
        if _remote_hash(transport, source) == sha256_of(target):
            return target
    raise Corrupted(transport.name, f"{Path(source).name} came back altered {ATTEMPTS} times")


def _remote_hash(transport: Transport, path: str) -> str | None:
    reply = transport.shell(f"sha256sum {shlex.quote(path)} 2>/dev/null", seconds=60)
    return reply.out.split()[0].lstrip("\\") if reply.code == 0 and reply.out.split() else None


class LocalTransport:
    """This machine."""

    def __init__(self, name: str) -> None:
        self.name = name

    def shell(self, script: str, seconds: float = SHELL_SECONDS) -> Reply:
        """See Transport."""
        done = run(["sh", "-c", marked(script)], self.name, seconds)
        return _reply(self.name, done)

    def send(self, source: Path, target: str) -> None:
        """See Transport."""
        must(self, f"cp {shlex.quote(str(source))} {shlex.quote(target)}", seconds=600)

    def fetch(self, source: str, target: Path) -> None:
        """See Transport."""
        must(self, f"cp {shlex.quote(source)} {shlex.quote(str(target))}", seconds=600)

    def recover(self) -> None:
        """See Transport."""


class SshTransport:
    """A machine behind OpenSSH, with the user's own keys and configuration."""

    OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")

    def __init__(self, name: str, host: str) -> None:
        self.name, self.host = name, host

    def shell(self, script: str, seconds: float = SHELL_SECONDS) -> Reply:
        """See Transport."""
        return _reply(self.name, self._ssh(marked(script), seconds))

    def send(self, source: Path, target: str) -> None:
        """See Transport."""
        done = self._ssh(marked(f"cat > {shlex.quote(target)}"), 600, source.read_bytes())
        if (reply := _reply(self.name, done)).code:
            problem = reply.err.strip()[-200:]
            raise (OutOfSpace if "No space left" in problem else Failed)(self.name, f"cannot write {target}: {problem}")

    def fetch(self, source: str, target: Path) -> None:
        """See Transport."""
        done = self._ssh(f"cat {shlex.quote(source)}", 600)
        if done.returncode:
            raise _lost(self.name, done)
        target.write_bytes(done.stdout)

    def recover(self) -> None:
        """See Transport."""
        self.shell("true")

    def _ssh(self, script: str, seconds: float, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        # What comes before is the greeting of a login.
        script = f"echo {OPENING}\n{script}"
        done = run(["ssh", *self.OPTIONS, "--", self.host, script], self.name, seconds, data)
        done.stdout = done.stdout.partition(f"{OPENING}\n".encode())[2]
        return done


def _reply(name: str, done: subprocess.CompletedProcess[bytes]) -> Reply:
    reply = unmarked(done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
    if reply is None:
        raise _lost(name, done)
    return reply


def _lost(name: str, done: subprocess.CompletedProcess[bytes]) -> Fault:
    said = done.stderr.decode(errors="replace").strip()[-200:]
    # ssh's own failures have this status; what it carries may be denied something too.
    if done.returncode == 255 and re.search(
        "Permission denied|Host key verification failed|Too many authentication failures", said
    ):
        return NoLogin(name, f"ssh said {said!r}")
    return Gone(name, f"the connection broke in mid-command ({said or f'exit {done.returncode}, no word'})")
