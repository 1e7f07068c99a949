"""Builds TensorFlow Lite Micro from its sources for a board, and an exported program over it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from scripts.micro.boards import Board

HERE = Path(__file__).parent
#: Checkouts beside each other: the interpreter, and what its headers include.
CHECKOUTS = {
    "tflite-micro": "",
    "flatbuffers": "include",
    "gemmlowp": "",
    "ruy": "",
    "kissfft": "",
}
PACKAGES = (
    "arm-none-eabi-g++:gcc-arm-none-eabi",
    "/usr/lib/arm-none-eabi/newlib/libc.a:libnewlib-arm-none-eabi",
    "/usr/lib/arm-none-eabi/newlib/libstdc++.a:libstdc++-arm-none-eabi-newlib",
    "qemu-system-arm:qemu-system-arm",
)
_FLAGS = (
    "-O2", "-ffunction-sections", "-fdata-sections", "-DTF_LITE_STATIC_MEMORY", "-w", "-std=c++17", "-fno-exceptions",
    "-fno-rtti", "-fno-threadsafe-statics",
)  # fmt: skip
_FOLDERS = (
    "tensorflow/lite/micro", "tensorflow/lite/micro/arena_allocator", "tensorflow/lite/micro/memory_planner",
    "tensorflow/lite/micro/tflite_bridge", "tensorflow/lite/micro/kernels", "tensorflow/lite/kernels",
    "tensorflow/lite/kernels/internal", "tensorflow/lite/kernels/internal/reference", "tensorflow/lite/core/c",
    "tensorflow/lite/core/api", "tensorflow/compiler/mlir/lite/core/api", "tensorflow/compiler/mlir/lite/schema",
    "tensorflow/lite/schema",
)  # fmt: skip
#: Tests, a log of its own, and kernels of operators that no program has.
_NOT = re.compile(
    r"_test\.cc|test_helper|mock_|fake_|_test_common|kernel_runner|/debug_log|detection_postprocess|kernels/("
    "assign_var|batch_to|broadcast_args|call_once|circular|decode|decompress|delay|embedding|energy|ethosu|expand|"
    "fft|fill|filter_bank|framer|gather_nd|if|irfft|l2|lstm|mirror|overlap|pcan|prelu|read_var|resize|rfft|space_to_b|"
    "split|squeeze|stacker|stft|svdf|unidirectional|var_handle|window|zeros_like)"
)
#: Headers that most sources include, compiled once.
_COMMON = (
    "tensorflow/lite/kernels/internal/quantization_util.h", "tensorflow/lite/kernels/internal/tensor_ctypes.h",
    "tensorflow/lite/micro/kernels/kernel_util.h", "tensorflow/lite/micro/micro_allocator.h",
    "tensorflow/lite/micro/micro_utils.h", "tensorflow/lite/schema/schema_generated.h",
)  # fmt: skip

#: The header of a program, and the sources that include it.
_MODEL, _OF_MODEL = "pocketune_model.h", ("pocketune_model.cc", "runner.cc")
#: The header of what most sources include, beside the library.
_PRECOMPILED = "common.h"


def lacking(sources: Path | None) -> str | None:
    """Return why no program can be built; None where it can."""
    if sources is None:
        return "no checkouts of tflite-micro, flatbuffers, gemmlowp, ruy and kissfft were named"
    for name in CHECKOUTS:
        if not (sources / name).is_dir():
            return f"{sources} has no checkout {name}"
    for need in PACKAGES:
        what, _, package = need.partition(":")
        if shutil.which(what) is None and not Path(what).exists():
            return f"{what} is missing (on Debian: apt-get install {package})"
    return None


def library(sources: Path, board: Board, out: Path, jobs: int = 2) -> Path:
    """Return `libtflm.a` for a board, built once.

    Args:
        sources: a folder of the checkouts.
        board: what for.
        out: where objects are kept.
        jobs: compilers at a time.

    Raises:
        RuntimeError: a file does not compile.
    """
    archive = out / "libtflm.a"
    if archive.exists():
        return archive
    (out / "objects").mkdir(parents=True, exist_ok=True)
    root = sources / "tflite-micro"
    common = out / _PRECOMPILED
    common.write_text("".join(f'#include "{name}"\n' for name in _COMMON))
    compiler = [*_compiler(sources, board), *_FLAGS]
    _run([*compiler, "-x", "c++-header", str(common), "-o", f"{common}.gch"])
    found = [path for folder in _FOLDERS for path in sorted((root / folder).glob("*.cc"))]
    found = [path for path in (*found, root / "tensorflow/lite/array.cc") if not _NOT.search(str(path))]
    waiting = [(path, out / "objects" / f"{path.relative_to(root)}.o".replace("/", "_")) for path in found]
    running: list[subprocess.Popen] = []
    for path, made in waiting:
        if made.exists():
            continue
        if len(running) == jobs:
            _finish(running.pop(0))
        command = [*compiler, "-include", str(common), "-c", str(path), "-o", str(made)]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for process in running:
        _finish(process)
    _run(["arm-none-eabi-ar", "rcs", str(archive), *(str(made) for _, made in waiting)])
    return archive


def firmware(exported: Path, sources: Path, board: Board, out: Path, sizes: dict[str, int]) -> Path:
    """Return an ELF that runs commands on an exported program; see `runner.cc`.

    Args:
        exported: the folder that `export_c` wrote.
        sources: a folder of the checkouts.
        board: what for.
        out: where `libtflm.a` of the board is, or is built.
        sizes: `ARENA_BYTES`, `VALUES_BYTES` and `RESULT_BYTES`: what the runner has room for.

    Raises:
        RuntimeError: it does not compile or fit.
    """
    archive, parts = library(sources, board, out), exported / "build"
    parts.mkdir(exist_ok=True)
    defines = [f"-D{name}={value}" for name, value in sizes.items()]
    strict = [flag for flag in _FLAGS if flag != "-w"] + ["-Wall", "-Wextra", "-Werror"]
    objects = []
    compiler = [*_compiler(sources, board), *strict, "-include", str(out / _PRECOMPILED)]
    for path in sorted((exported / "src").glob("*.cc")):
        kept = parts if path.name in _OF_MODEL else out / "session"
        objects.append(str(_compiled(path, exported / "src", compiler, kept)))
    objects.append(str(_compiled(HERE / "runner.cc", exported / "src", [*compiler, "-I", str(HERE), *defines], parts)))
    start, elf = parts / "start.o", parts / "program.elf"
    _run(["arm-none-eabi-gcc", *board.flags, "-O2", "-c", str(HERE / "start.c"), "-o", str(start)])
    memory = [f"-Wl,--defsym={name}={value}" for name, value in board.memory.items()]
    linking = ["-nostartfiles", "--specs=nosys.specs", "-Wl,--gc-sections", "-T", str(HERE / "board.ld"), *memory]
    _run(["arm-none-eabi-g++", *board.flags, *linking, "-o", str(elf), str(start), *objects, str(archive), "-lm"])
    return elf


def _compiled(path: Path, headers: Path, command: Sequence[str], out: Path) -> Path:
    """Return the object of a source in `out`, made once of equal text: most sources are the same for all programs."""
    included = [header for header in sorted(headers.glob("*.h")) if header.name != _MODEL or path.name in _OF_MODEL]
    text = " ".join([*command, path.read_text(), *(header.read_text() for header in included)])
    made = out / f"{path.name}-{sha256(text.encode()).hexdigest()[:16]}.o"
    if not made.exists():
        out.mkdir(exist_ok=True)
        partial = out / f"{made.name}.{os.getpid()}"
        _run([*command, "-I", str(headers), "-c", str(path), "-o", str(partial)])
        partial.replace(made)
    return made


def symbols(elf: Path) -> set[str]:
    """Return the names of what an ELF holds, as they were written in C++."""
    listed = _run(["arm-none-eabi-nm", "--demangle", str(elf)])
    return {line.split(maxsplit=2)[-1] for line in listed.splitlines()}


def flash(elf: Path) -> int:
    """Return bytes of code and constants."""
    return int(_run(["arm-none-eabi-size", str(elf)]).splitlines()[1].split()[0])


def _compiler(sources: Path, board: Board) -> list[str]:
    places = [sources / name / inner for name, inner in CHECKOUTS.items()]
    return ["arm-none-eabi-g++", *board.flags, *(part for place in places for part in ("-isystem", str(place)))]


def _finish(process: subprocess.Popen) -> None:
    said = process.communicate()[0]
    if process.returncode != 0:
        raise RuntimeError(said)


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]}: {done.stderr or done.stdout}")
    sys.stderr.write(done.stderr)
    return done.stdout
