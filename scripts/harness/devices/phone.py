"""A phone behind adb: jobs run in the app's harness activity, in the foreground, as people get it."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from dataclasses import asdict
from pathlib import Path

from scripts.harness.device import LOG, RESULT, STATE, THERMAL, Conditions, Facts, Job, Progress
from scripts.harness.devices.adb import AdbTransport
from scripts.harness.devices.transport import fetch_whole, put, sha256_of
from scripts.harness.faults import Failed, NotInstalled

PACKAGE = "org.pocketune.app"
ACTIVITY = f"{PACKAGE}/{PACKAGE}.harness.HarnessActivity"
TAG = "PocketuneHarness"
REMOVED = "is not installed any more"
FOLDER = "/data/local/tmp/pocketune"
RESULTS = f"/sdcard/Android/data/{PACKAGE}/files/harness"

#: Sections of one shell command, so that asking costs one round trip.
ASK = (
    "dumpsys battery; dumpsys thermalservice; echo lowpower; settings get global low_power; "
    "dumpsys power | grep mWakefulness=; cat /proc/meminfo; df -k /data/local/tmp; "
    "cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq 2>/dev/null"
)
ASK_FACTS = "getprop; echo; cat /proc/meminfo; cat /proc/cpuinfo"
#: Who speaks of a dead process in the log.
MOURNERS = re.compile(rf"lowmemorykiller|lmkd|AndroidRuntime|DEBUG|libc|{re.escape(PACKAGE)}|{TAG}")


class Phone:
    """See Device."""

    poll_seconds = 1.0

    def __init__(self, transport: AdbTransport, apk: Path | None = None) -> None:
        self.transport, self.apk, self.name = transport, apk, transport.name
        #: Of the app since the last job started.
        self._pid = ""

    def facts(self) -> Facts:
        """See Device."""
        return parse_facts(self.name, self.transport.shell(ASK_FACTS, 60).out, self._app())

    def conditions(self) -> Conditions:
        """See Device."""
        return parse_conditions(self.transport.shell(ASK).out)

    def prepare(self) -> None:
        """Installs the app if it was given and another one is there; wakes the screen. Raises NotInstalled."""
        self.transport.shell("input keyevent KEYCODE_WAKEUP; wm dismiss-keyguard")
        # Compares content: a version number says nothing about a build.
        if self.apk is not None and self._app() != sha256_of(self.apk):
            self.transport.install(self.apk)
        self._expect_app("is not installed")

    def push(self, file: Path) -> str:
        """See Device."""
        return put(self.transport, file, FOLDER)

    def start(self, job: Job) -> None:
        """See Device."""
        # The screen may have gone off while the phone rested; an app behind it is not what people get.
        self.transport.shell(f"am force-stop {PACKAGE}; input keyevent KEYCODE_WAKEUP; wm dismiss-keyguard")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, f"{job.id}.json")
            file.write_text(json.dumps(asdict(job)))
            path = self.push(file)
        reply = self.transport.shell(f"am start -W -n {ACTIVITY} --es job {shlex.quote(path)}", seconds=30)
        said = f"{reply.out} {reply.err}"
        if "does not exist" in said:
            raise NotInstalled(self.name, f"{PACKAGE} {REMOVED}")
        if reply.code or "Error" in said:
            raise Failed(self.name, f"the app did not start: {' '.join(said.split())[:300]}")
        pid = self.transport.shell(f"pidof {PACKAGE}").out.split()
        self._pid = pid[0] if pid and pid[0].isdigit() else ""

    def poll(self, job: Job) -> Progress:
        """See Device. Raises NotInstalled: to remove an app ends its process."""
        path = f"{RESULTS}/{job.id}"
        # The process first: one that ends between the two questions has left its result.
        script = (
            f"pidof {PACKAGE} >/dev/null && echo alive; test -f {path}.{RESULT} && echo finished; "
            f"stat -c %s {path}.{LOG} 2>/dev/null"
        )
        words = self.transport.shell(script).out.split()
        size = next((int(word) for word in words if word.isdigit()), 0)
        if "finished" not in words and "alive" not in words:
            self._expect_app(REMOVED)
            return Progress("gone", size)
        return Progress("finished" if "finished" in words else "running", size)

    def pull(self, job: Job, part: str, into: Path) -> Path:
        """See Device."""
        return fetch_whole(self.transport, f"{RESULTS}/{job.id}.{part}", into / f"{job.id}.{part}")

    def stop(self) -> None:
        """See Device."""
        self.transport.shell(f"am force-stop {PACKAGE}")

    def forget(self, job: Job) -> None:
        """See Device."""
        files = " ".join(f"{RESULTS}/{job.id}.{part}" for part in (LOG, STATE, RESULT))
        self.transport.shell(f"rm -f {files} {FOLDER}/*/{job.id}.json")

    def said(self) -> str:
        """See Device."""
        # Of the app alone: others on the phone run TFLite as well.
        return self.transport.shell(f"logcat -d -v raw --pid={self._pid}", 30).out if self._pid else ""

    def last_words(self) -> str:
        """See Device."""
        out = self.transport.shell("logcat -d -t 400 -v brief", 30).out
        return "\n".join([line for line in out.splitlines() if MOURNERS.search(line)][-8:])

    def recover(self) -> None:
        """See Device."""
        self.transport.recover()

    def clean(self) -> None:
        """See Device."""
        self.stop()
        self.transport.shell(f"rm -rf {FOLDER} {RESULTS}")

    def _expect_app(self, problem: str) -> None:
        """Raises NotInstalled with the problem."""
        if self.transport.shell(f"pm path {PACKAGE}").code:
            raise NotInstalled(self.name, f"{PACKAGE} {problem}")

    def _app(self) -> str | None:
        """SHA-256 of the installed app."""
        if (path := re.search(r"^package:(\S+)", self.transport.shell(f"pm path {PACKAGE}").out, re.MULTILINE)) is None:
            return None
        there = self.transport.shell(f"sha256sum {shlex.quote(path[1])}", 60).out.split()
        return there[0] if there else None


def parse_facts(name: str, out: str, app: str | None) -> Facts:
    """Facts from the output of getprop, /proc/meminfo and /proc/cpuinfo, and the app's SHA-256."""
    props = dict(re.findall(r"^\[([^]]*)]: \[([^]]*)]", out, re.MULTILINE))

    def prop(*names: str) -> str | None:
        return next((props[n] for n in names if props.get(n)), None)

    sdk, memory = prop("ro.build.version.sdk"), re.search(r"MemTotal:\s+(\d+) kB", out)
    return Facts(
        kind="adb",
        name=name,
        model=prop("ro.product.model") or "unknown",
        manufacturer=prop("ro.product.manufacturer"),
        soc=prop("ro.soc.model", "ro.board.platform", "ro.hardware"),
        fingerprint=prop("ro.build.fingerprint"),
        sdk=int(sdk) if sdk and sdk.isdigit() else None,
        abis=tuple(filter(None, (prop("ro.product.cpu.abilist", "ro.product.cpu.abi") or "").split(","))),
        app=app,
        cores=len(re.findall(r"^processor\s*:", out, re.MULTILINE)) or None,
        memory_bytes=int(memory[1]) * 1024 if memory else None,
        is_emulator=prop("ro.kernel.qemu", "ro.boot.qemu") == "1" or "generic" in (prop("ro.product.device") or ""),
    )


def parse_conditions(out: str) -> Conditions:
    """Conditions from the output of ASK; what a phone does not say stays unknown."""

    def number(pattern: str) -> int | None:
        match = re.search(pattern, out, re.MULTILINE)
        return int(match[1]) if match else None

    def truth(pattern: str, yes: str) -> bool | None:
        match = re.search(pattern, out, re.MULTILINE)
        return None if match is None else match[1] == yes

    tenths, available = number(r"^\s*temperature: (-?\d+)"), number(r"^MemAvailable:\s+(\d+) kB")
    free, thermal = number(r"^/\S+\s+\d+\s+\d+\s+(\d+)\s+\d+%"), number(r"Thermal Status: (\d+)")
    return Conditions(
        thermal=None if thermal is None else min(thermal, len(THERMAL) - 1),
        celsius=None if tenths is None else tenths / 10,
        battery_percent=number(r"^\s*level: (\d+)"),
        is_charging=True if re.search(r"powered: true", out) else truth(r"^\s*status: (\d)", "2"),
        power_saver=truth(r"^lowpower\r?\n(\w+)", "1"),
        screen_on=truth(r"mWakefulness=(\w+)", "Awake"),
        free_bytes=None if free is None else free * 1024,
        available_bytes=None if available is None else available * 1024,
        mhz=tuple(int(line) // 1000 for line in re.findall(r"^(\d{4,8})$", out, re.MULTILINE)),
    )
