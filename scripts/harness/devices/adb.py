"""The way to a phone: the adb binary with argument lists, own time-outs, end markers, and its sayings understood."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from converter.support.errors import UsageError
from scripts.harness.devices.transport import MARKER, SHELL_SECONDS, Reply, marked, run, unmarked
from scripts.harness.faults import Failed, Fault, Gone, OutOfSpace, Silent, Unauthorized, WrongDevice
from scripts.harness.stop import rest

#: A push may be slow, never endless: this and a second for each such amount.
MOVE_SECONDS, MOVE_BYTES_A_SECOND = 30.0, 500_000
RECOVER_SECONDS = 90.0

#: What adb says, and what it means. The first that matches counts.
SAYINGS: tuple[tuple[str, type[Fault]], ...] = (
    ("No space left on device|INSUFFICIENT_STORAGE", OutOfSpace),
    ("unauthorized|still authorizing|authenticat", Unauthorized),
    ("NO_MATCHING_ABIS|OLDER_SDK", WrongDevice),
    ("device offline|device '.*' not found|no devices|device not found|closed|protocol fault", Gone),
    ("(failed to|cannot) connect|connect failed|EOF|Connection reset|Broken pipe|failed to (read|write)", Gone),
)


def adb_binary(given: str | None = None) -> str:
    """Return the user's own adb, or the one in adbutils' wheel: two versions on one machine end each other's server.

    Raises:
        UsageError: there is none.
    """
    if found := given or os.environ.get("POCKETUNE_ADB") or shutil.which("adb"):
        return found
    try:
        import adbutils
    except ImportError:
        raise UsageError("there is no adb: pip install 'pocketune[device]', or give --adb PATH") from None
    return str(adbutils.adb_path())


@dataclass(frozen=True)
class Listed:
    """A line of `adb devices`: `device`, `offline`, `unauthorized`, ... and the model where known."""

    serial: str
    state: str
    model: str


class Adb:
    """An adb client; its server is the one that the environment says (ANDROID_ADB_SERVER_PORT).

    Attributes:
        patience: multiplies every time-out.
    """

    def __init__(self, binary: str, patience: float = 1.0) -> None:
        self.binary, self.patience = binary, patience

    def run(self, *arguments: str, device: str = "adb", seconds: float = SHELL_SECONDS) -> tuple[int, str, str]:
        """Exit status, standard output and error. Raises Silent after the time-out."""
        environment = {k: v for k, v in os.environ.items() if k != "ANDROID_SERIAL"}
        done: subprocess.CompletedProcess[bytes] = run(
            [self.binary, *arguments], device, self.patience * seconds, environment=environment
        )
        return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")

    def devices(self) -> list[Listed]:
        """Return what is connected, in whatever state."""
        code, out, err = self.run("devices", "-l")
        if code:
            raise Fault("adb", f"`adb devices` said {err.strip()[-200:]!r}")
        rows = [line.split() for line in out.splitlines()[1:] if line.strip() and not line.startswith("*")]
        models = [next((word[6:] for word in row if word.startswith("model:")), "") for row in rows]
        return [Listed(row[0], row[1], model) for row, model in zip(rows, models, strict=True)]


class AdbTransport:
    """One phone, always by its serial."""

    def __init__(self, adb: Adb, serial: str) -> None:
        self.adb, self.name = adb, serial

    def shell(self, script: str, seconds: float = SHELL_SECONDS) -> Reply:
        """See Transport."""
        code, out, err = self._run("shell", "-n", marked(script), seconds=seconds)
        reply = unmarked(out, err)
        if reply is None:
            raise self._fault(f"{out[-200:]} {err}", code)
        return reply

    def send(self, source: Path, target: str) -> None:
        """See Transport."""
        self._move("push", str(source), target, source.stat().st_size)

    def fetch(self, source: str, target: Path) -> None:
        """See Transport."""
        self._move("pull", source, str(target), 0)

    def install(self, apk: Path) -> None:
        """Installs or updates an app.

        Raises:
            WrongDevice: not for this processor or Android version.
            OutOfSpace, Gone, Silent, Unauthorized: as any command.
            Failed: refused for another reason.
        """
        seconds = MOVE_SECONDS + apk.stat().st_size / MOVE_BYTES_A_SECOND
        code, out, err = self._run("install", "-r", "-g", str(apk), seconds=seconds)
        if code or "Success" not in out:
            said = re.search(r"Failure \[([^]]*)]|INSTALL_\S+.*", out + err)
            raise self._fault(said[0] if said else f"{out} {err}", code, f"{apk.name} was refused")

    def recover(self) -> None:
        """Connects again: waits until its shell answers and it has booted.

        Not by `adb wait-for-device`, which waits for ever for a phone that does not trust this computer, and for one
        that is online without a shell not at all.
        """
        until = time.monotonic() + self.adb.patience * RECOVER_SECONDS
        fault: Fault = Gone(self.name, "it does not come back")
        while time.monotonic() < until:
            try:
                self._reconnect()
                if self.shell("getprop sys.boot_completed", 5).out.strip() == "1":
                    return
            except (Gone, Silent) as error:
                fault = error
            rest(self.name, 0.3)
        raise fault

    def _reconnect(self) -> None:
        """Over TCP adb may say "already connected" to a device that it shows offline: disconnect first."""
        if ":" in self.name:
            self.adb.run("disconnect", self.name, device=self.name, seconds=5)
            self.adb.run("connect", self.name, device=self.name, seconds=10)
        else:
            self.adb.run("reconnect", "offline", device=self.name, seconds=10)

    def _states(self) -> dict[str, str] | None:
        """Return what adb's server says of all devices now; None when it does not answer."""
        try:
            return {d.serial: d.state for d in self.adb.devices()}
        except Fault:
            return None

    def _move(self, verb: str, source: str, target: str, size: int) -> None:
        seconds = MOVE_SECONDS + size / MOVE_BYTES_A_SECOND
        code, out, err = self._run(verb, source, target, seconds=seconds)
        if code:
            # adb often ends a broken transfer without a word: then the device itself is asked.
            self.shell("true", 5)
            raise self._fault(f"{out} {err}", code, f"{verb} of {Path(source).name} failed")

    def _run(self, *arguments: str, seconds: float) -> tuple[int, str, str]:
        return self.adb.run("-s", self.name, *arguments, device=self.name, seconds=seconds)

    def _fault(self, said: str, code: int, what: str = "the connection broke in mid-command") -> Fault:
        said = " ".join(said.replace(MARKER, "").split())[-200:]
        meant = next((fault for pattern, fault in SAYINGS if re.search(pattern, said)), None)
        if meant is None:
            # Silence after a started command is a dropped connection; words that nobody knows are shown.
            meant = Gone if what.startswith("the connection") else Failed
        if meant is Gone:
            states = self._states()
            if states is not None and states.get(self.name) == "unauthorized":
                meant = Unauthorized
            elif states is not None and self.name not in states:
                what = "adb knows no such device"
        return meant(self.name, f"{what} (adb: {said or f'exit {code}, no word'})")
