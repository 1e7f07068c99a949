"""Machines without adb: this one, a Raspberry Pi over ssh, and the Android library on this machine's JVM.

Jobs run in a process of their own, a worker that leaves the same files as the app does.
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from scripts.harness.device import LOG, RESULT, STATE, Conditions, Facts, Job, Kind, Progress
from scripts.harness.devices.transport import LocalTransport, Transport, fetch_whole, must, put
from scripts.harness.faults import Failed, NoCheckout

ASK = (
    "cat /proc/loadavg; getconf _NPROCESSORS_ONLN; cat /proc/meminfo; df -k .; "
    "cat /sys/class/thermal/thermal_zone*/temp 2>/dev/null | sed 's/^/millicelsius /'; "
    "cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq 2>/dev/null | sed 's/^/khz /'; "
    "sed -n 's/^cpu MHz[^0-9]*/mhz /p' /proc/cpuinfo"
)
#: When a process began, in clock ticks since the boot.
BORN = "awk '{{print $22}}' /proc/{}/stat"
ASK_FACTS = (
    "uname -m; getconf _NPROCESSORS_ONLN; cat /proc/meminfo; "
    "cat /proc/device-tree/model 2>/dev/null | tr -d '\\0' | sed 's/^/model /'; "
    "echo; sed -n 's/^model name[^:]*: /model /p' /proc/cpuinfo | head -n 1; "
    "sed -n 's/^PRETTY_NAME=/system /p' /etc/os-release | tr -d '\"'; uname -r | sed 's/^/kernel /'"
)


class Computer:
    """See Device.

    Attributes:
        worker: the script that runs a job, made from the paths of the job file and the folder of results there.
        emulates: another processor that the worker runs on; None for the machine's own.
        checkout: folder of Pocketune there, for a shell; None where it is this one.
    """

    def __init__(
        self,
        transport: Transport,
        kind: Kind,
        folder: str,
        worker: Callable[[str, str], str],
        emulates: str | None = None,
        checkout: str | None = None,
    ) -> None:
        self.transport, self.kind, self.folder, self.worker = transport, kind, folder, worker
        self.emulates, self.checkout = emulates, checkout
        # A question over ssh is a login, which costs the machine that is measured something.
        self.poll_seconds = 0.05 if isinstance(transport, LocalTransport) else 1.0
        self.name = transport.name
        self._pid: int | None = None

    def facts(self) -> Facts:
        """See Device."""
        facts = parse_facts(self.kind, self.name, self.transport.shell(ASK_FACTS).out)
        if self.emulates:
            facts = replace(facts, is_emulator=True, abis=("aarch64",), model=f"{self.emulates} on {facts.model}")
        return facts

    def conditions(self) -> Conditions:
        """See Device."""
        return parse_conditions(self.transport.shell(f"mkdir -p {self._folder} && cd {self._folder} && {ASK}").out)

    def prepare(self) -> None:
        """Ends what an earlier harness left running and makes the folder of results. Raises NoCheckout."""
        if self.checkout and self.transport.shell(f"test -x {self.checkout}/.venv/bin/python").code:
            raise NoCheckout(self.name, f"{self.checkout} is no checkout of Pocketune with an environment")
        self.stop()
        must(self.transport, f"mkdir -p {self._quoted_results}")

    def push(self, file: Path) -> str:
        """See Device."""
        return put(self.transport, file, self.folder)

    def start(self, job: Job) -> None:
        """See Device."""
        self.stop()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, f"{job.id}.json")
            file.write_text(json.dumps(asdict(job)))
            path = self.push(file)
        # A session of its own: stopping it reaches all that it starts, and nothing else.
        words = f"{self._folder}/words"
        script = f"setsid sh -c {shlex.quote(self.worker(path, self._results))} </dev/null >{words} 2>&1 &"
        out = must(self.transport, f"{script}\necho $! $({BORN.format('$!')}) > {self._worker}\necho $!").split()
        if not out or not out[-1].isdigit():
            raise Failed(self.name, f"the worker did not start: {' '.join(out)!r}")
        self._pid = int(out[-1])

    def poll(self, job: Job) -> Progress:
        """See Device."""
        path = f"{self._quoted_results}/{job.id}"
        script = (
            f"grep -q 'State:.[RSDT]' /proc/{self._pid}/status 2>/dev/null && echo alive; "
            f"test -f {path}.{RESULT} && echo finished; stat -c %s {path}.{LOG} 2>/dev/null"
        )
        words = self.transport.shell(script).out.split()
        size = next((int(word) for word in words if word.isdigit()), 0)
        return Progress("finished" if "finished" in words else "running" if "alive" in words else "gone", size)

    def pull(self, job: Job, part: str, into: Path) -> Path:
        """See Device."""
        return fetch_whole(self.transport, f"{self._results}/{job.id}.{part}", into / f"{job.id}.{part}")

    def stop(self) -> None:
        """See Device."""
        # Also the worker of a harness that was killed; its number may be another process's by now.
        script = (
            f"test -f {self._worker} || exit 0; read pid born < {self._worker}; rm -f {self._worker}; "
            f'case "$pid$born" in *[!0-9]*) exit 0;; esac; test "$pid" -gt 1 && test -n "$born" && '
            f'test "$({BORN.format("$pid")})" = "$born" && kill -s KILL -- -$pid'
        )
        self.transport.shell(f"({script}) 2>/dev/null")
        self._pid = None

    def forget(self, job: Job) -> None:
        """See Device."""
        files = " ".join(f"{self._quoted_results}/{job.id}.{part}" for part in (LOG, STATE, RESULT))
        self.transport.shell(f"rm -f {files} {self._folder}/*/{job.id}.json")

    def said(self) -> str:
        """See Device."""
        return self.transport.shell(f"cat {self._folder}/words 2>/dev/null").out

    def last_words(self) -> str:
        """See Device."""
        return self.transport.shell(f"tail -c 500 {self._folder}/words 2>/dev/null").out.strip()

    def recover(self) -> None:
        """See Device."""
        self.transport.recover()

    def clean(self) -> None:
        """See Device."""
        self.stop()
        self.transport.shell(f"rm -rf {self._folder}")

    @property
    def _folder(self) -> str:
        """For a script: a folder may have a space in it, or worse."""
        return shlex.quote(self.folder)

    @property
    def _worker(self) -> str:
        return f"{self._folder}/worker"

    @property
    def _results(self) -> str:
        return f"{self.folder}/results"

    @property
    def _quoted_results(self) -> str:
        return f"{self._folder}/results"


def parse_facts(kind: Kind, name: str, out: str) -> Facts:
    """Facts from the output of ASK_FACTS."""
    lines = out.split("\n")
    named = {key: value.strip() for line in lines for key, _, value in [line.partition(" ")] if value}
    memory = re.search(r"MemTotal:\s+(\d+) kB", out)
    return Facts(
        kind=kind,
        name=name,
        model=named.get("model", "unknown"),
        fingerprint=f"{named.get('system', 'Linux')}, kernel {named.get('kernel', 'unknown')}",
        abis=(lines[0].strip(),),
        cores=int(lines[1]) if len(lines) > 1 and lines[1].isdigit() else None,
        memory_bytes=int(memory[1]) * 1024 if memory else None,
    )


def parse_conditions(out: str) -> Conditions:
    """Conditions from the output of ASK."""
    load = re.search(r"^([\d.]+) [\d.]+ [\d.]+ \d+/\d+ \d+\n(\d+)", out, re.MULTILINE)
    available = re.search(r"^MemAvailable:\s+(\d+) kB", out, re.MULTILINE)
    free = re.search(r"^\S+\s+\d+\s+\d+\s+(\d+)\s+\d+%", out, re.MULTILINE)
    millicelsius = [int(t) for t in re.findall(r"^millicelsius (-?\d+)", out, re.MULTILINE)]
    clocks = [int(k) // 1000 for k in re.findall(r"^khz (\d+)", out, re.MULTILINE)]
    return Conditions(
        celsius=max(millicelsius) / 1000 if millicelsius else None,
        load=float(load[1]) / int(load[2]) if load else None,
        free_bytes=int(free[1]) * 1024 if free else None,
        available_bytes=int(available[1]) * 1024 if available else None,
        mhz=tuple(clocks or [round(float(m)) for m in re.findall(r"^mhz ([\d.]+)", out, re.MULTILINE)]),
    )
