"""Stands in for the CUDA libraries that PyPI's torch is linked with, so that it runs on the CPU without their 3 GB.

    VENV/bin/python scripts/torch/cuda_stubs.py

For every CUDA library that torch's own libraries need and that is not installed, a shared object of the same name is
compiled beside them; it defines each symbol that torch wants of it, with its version, and each ends the process when it
is called. Without a GPU none is.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

#: The runtime proper is small and called when torch loads: it is installed.
_INSTALLED = "libcudart."
#: Whose symbols carry no version: the names tell which library they belong to.
_PREFIXES = {
    "libcublas.so": r"cublas(?!Lt)",
    "libcublasLt.so": r"cublasLt",
    "libcuda.so": r"cu(?!File)[A-Z]",
    "libcudnn.so": r"cudnn",
    "libcufft.so": r"cufft",
    "libcufile.so": r"cuFile",
    "libcusolver.so": r"cusolver",
    "libcusparse.so": r"cusparse(?!Lt)",
    "libcusparseLt.so": r"cusparseLt",
    "libnccl.so": r"p?nccl",
    "libnvrtc.so": r"nvrtc",
    "libnvshmem_host.so": r"nvshmem",
}


def main() -> None:
    """Writes the stubs beside torch's libraries."""
    folder = Path(sysconfig.get_path("purelib")) / "torch" / "lib"
    libraries = sorted(folder.glob("*.so*"))
    present = {file.name for file in libraries}
    needed: set[str] = set()
    undefined: set[tuple[str, str]] = set()
    defined: set[str] = set()
    library_of: dict[str, str] = {}
    for file in libraries:
        needed |= set(re.findall(r"NEEDED.*\[(.*)\]", _said("readelf", "-d", file)))
        library_of |= _versions(_said("readelf", "-VW", file))
        undefined |= {_symbol(line) for line in _said("nm", "-D", "--undefined-only", file).splitlines()}
        defined |= {_symbol(line)[0] for line in _said("nm", "-D", "--defined-only", file).splitlines()}
    for name in sorted(needed - present):
        if not re.match(r"lib(cu|nv|nccl)", name) or name.startswith(_INSTALLED):
            continue
        symbols = {(s, version) for s, version in undefined if version and library_of.get(version) == name}
        prefix = _PREFIXES.get(name.partition(".so")[0] + ".so")
        versioned = {s for s, _ in symbols}
        symbols |= {
            (s, "") for s, v in undefined if not v and prefix and re.match(prefix, s) and s not in defined | versioned
        }
        _compile(folder / name, symbols)


def _said(*command: object) -> str:
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True).stdout


def _symbol(line: str) -> tuple[str, str]:
    """Name and version of a line of nm."""
    name, _, version = line.split()[-1].partition("@")
    return name, version.lstrip("@")


def _versions(text: str) -> dict[str, str]:
    """Version -> the library it is asked of, from readelf's version needs."""
    found: dict[str, str] = {}
    library = ""
    for line in text.splitlines():
        if file := re.search(r"Version: \d+\s+File: (\S+)", line):
            library = file[1]
        elif library and (name := re.search(r"Name: (\S+)\s+Flags", line)):
            found[name[1]] = library
    return found


def _compile(file: Path, symbols: Iterable[tuple[str, str]]) -> None:
    """A shared object that defines the symbols."""
    by_version: dict[str, list[str]] = defaultdict(list)
    for symbol, version in sorted(symbols):
        by_version[version].append(symbol)
    with tempfile.TemporaryDirectory() as scratch:
        code, script = Path(scratch) / "stub.c", Path(scratch) / "stub.map"
        bodies = [f"void {symbol}(void) {{ abort(); }}" for names in by_version.values() for symbol in names]
        code.write_text("\n".join(["#include <stdlib.h>", *bodies, ""]))
        versions = {version: names for version, names in by_version.items() if version}
        script.write_text(
            "".join(f"{v} {{ global: {' '.join(f'{n};' for n in ns)} }};\n" for v, ns in versions.items())
        )
        command = ["cc", "-shared", "-fPIC", "-w", code, f"-Wl,-soname,{file.name}", "-o", file]
        _said(*command, *([f"-Wl,--version-script,{script}"] if versions else []))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
