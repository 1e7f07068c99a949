"""Timing on this machine."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import numpy as np

from converter.backend.targets import tables, target
from converter.support.errors import UsageError
from converter.support.files import write_atomically
from converter.tools.measure.cases import Case, built, cases
from converter.tools.measure.table import figures, fitted

#: Where tables of this machine are kept, unless this variable names another folder.
FOLDER = "POCKETUNE_TABLES"
#: How long each case runs at least, in seconds.
_SECONDS = 0.3


def nanoseconds(data: bytes, xnnpack: bool = True) -> float:
    """Best time of one run of a file with one signature here, one thread."""
    from converter.support.litert import Interpreter, OpResolverType

    kind = OpResolverType.AUTO if xnnpack else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=data, num_threads=1, experimental_op_resolver_type=kind)
    interpreter.allocate_tensors()
    rng = np.random.default_rng(1)
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], rng.standard_normal(detail["shape"]).astype(detail["dtype"]))
    times, end = list[float](), time.perf_counter() + _SECONDS
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        interpreter.invoke()
        times.append(time.perf_counter() - start)
    return min(times) * 1e9


def measured_here(chosen: Iterable[Case], xnnpack: bool = True) -> list[tuple[Case, float]]:
    """Return the cases, each with the nanoseconds that a run of it takes here."""
    return [(case, nanoseconds(built(case), xnnpack)) for case in chosen]


def measured_table(like: str | None = None) -> Path:
    """Return the table of this machine, for `build(target=...)`: measured in half a minute, once, and kept.

    Args:
        like: the target whose table gives what is not measured; None: that of LiteRT on this kind of processor.

    Returns:
        The file, in `~/.cache/pocketune/tables` or the folder that `$POCKETUNE_TABLES` names. Remove it to measure
        again.

    Raises:
        UsageError: the target is none that this machine's own runtime and processor could be.
    """
    usual = "litert-2/x86-64" if platform.machine() == "x86_64" else "litert-2"
    like = usual if like is None else like
    if like != usual:
        raise UsageError(
            f"what is measured here are the costs of {usual}, not of {like}: leave the target out. A phone is measured "
            "by scripts/device measure.",
            page="targets",
        )
    folder = Path(os.environ.get(FOLDER) or Path.home() / ".cache/pocketune/tables")
    name = re.sub(r"[^\w.]+", "-", f"{processor()} litert {version('ai-edge-litert')}").strip("-").lower()
    file = folder / f"{name}.toml"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        found = figures(measured_here(cases()), target(like))
        write_atomically(file, fitted(tables()[like], found, name, "ns", processor(), own_cache()).encode())
    return file


def own_cache() -> int | None:
    """Return the bytes of the second level of caches, which a core has to itself; None if not known."""
    for level in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        if (level / "level").read_text().strip() == "2":
            kib = re.fullmatch(r"(\d+)K", (level / "size").read_text().strip())
            return None if kib is None else int(kib[1]) << 10
    return None


def processor() -> str:
    """Return what the processor is called."""
    said = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return said[1] if said else platform.machine()
