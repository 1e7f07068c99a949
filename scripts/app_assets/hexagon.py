"""Compiles a split program ahead of time for the NPU of a phone's SoC, by Qualcomm's plugin of LiteRT."""

from __future__ import annotations

import os
import re
import subprocess
from importlib import metadata
from pathlib import Path

from converter.program.flatbuffer.schema import generated
from converter.runtime.engines.hexagon import Hexagon
from converter.support.errors import UsageError
from converter.support.invocation import command

#: It updates in float32 and stays on the CPU.
UPDATE = "apply"
#: Seconds that the compiler may take.
_LIMIT = 900
_SELECTED = re.compile(rb"selected (\d+) ops, from a total of (\d+) ops. resulted in (\d+) partitions")


def compile_ahead(program: Path, soc: str, out: Path) -> None:
    """Writes the file that LiteRT runs on that SoC's NPU: of all signatures but the update nothing is left for the CPU.

    It has no checksum, and is of use beside the one that it was made from.

    Raises:
        UsageError: the compiler is not set up, knows no such SoC, or leaves operators over.
    """
    engine = Hexagon(soc)
    libraries = engine.options()["libraries"]
    if not Path(libraries).is_dir():
        raise UsageError(f"Qualcomm's libraries are not in {libraries}: {command('engines hexagon')}")
    model = generated.ModelT.InitFromPackedBuf(program.read_bytes(), 0)
    taken = {
        d.signatureKey.decode(): str(d.subgraphIndex) for d in model.signatureDefs if d.signatureKey != UPDATE.encode()
    }
    litert = Path(str(metadata.distribution("ai-edge-litert").locate_file("ai_edge_litert")))
    call = [litert / "tools" / "apply_plugin_main", "--cmd=apply", f"--model={program}", f"--o={out}", "--err=--"]
    call += ["--soc_manufacturer=Qualcomm", f"--soc_model={soc}", f"--subgraphs={','.join(taken.values())}"]
    call += [f"--libs={litert / 'vendors' / 'qualcomm' / 'compiler'}"]
    environment = os.environ | engine.environment()
    done = subprocess.run(
        call, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_LIMIT, check=False
    )
    found = _SELECTED.findall(done.stdout)
    whole = [selected == total and partitions == b"1" for selected, total, partitions in found]
    if done.returncode or len(whole) != len(taken) or not all(whole):
        out.unlink(missing_ok=True)
        took = ", ".join(f"{s.decode()} of {t.decode()} operators in {p.decode()} partitions" for s, t, p in found)
        raise UsageError(
            f"{program.name} is not taken whole for {soc}: of {', '.join(taken)} Qualcomm's compiler took "
            f"{took or 'nothing'} (exit status {done.returncode}): build for the target 'hexagon'"
        )
