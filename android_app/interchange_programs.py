"""Programs and states of one model, of others near to it, and of older versions (test_programs.py).

OUT/interchange.json says of each pair what the host makes of it: what differs, which tensors are taken over, whether a
session refuses it, and in a state of those tensors the numbers as the program stores them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
from pathlib import Path

import jax
import numpy as np

import converter
from converter.program.file import read_program
from converter.program.manifest import ModelTensor, StateTensor
from converter.runtime import TrainingSession
from converter.runtime.state.interchange import StateSpec
from converter.runtime.state.saved import compared
from converter.runtime.state.state_file import State, pack, unpack

# Beside this file, which is imported by a script.
from models import CLASSES, chained, squared  # isort: skip

BATCH, RATE = 8, 0.02


def write_interchange(out: Path) -> None:
    """Programs and states of one model, built in many ways, and of others near to it; what goes on where."""
    plain = {"optimizer": "adam", "batch": BATCH, "target": "litert-2", "update": {"square": 1, "head/*": 1}}
    plain |= {"signatures": ("train", "infer")}
    adapted = {"update": {"square": converter.Channels(0.1), "head/*": 1}, "signatures": ("train", "infer", "fisher")}
    of_integers = {"optimizer": "sgd", "train_as": "int8"}
    room = {"update": "head", "head": "class_means", "classes": f"{CLASSES}+2"}
    named = {"my_square": converter.Channels(0.1), "head": 1}
    programs = {
        "base": converter.build(squared(), **plain),
        "turned": converter.build(squared(), **plain | {"target": "gpu", "batch": 2}),
        "stateless": converter.build(squared(), **plain | {"state": "stateless", "micro_batch": 2}),
        "frozen": converter.build(squared(frozen=1.5), **plain),
        "grown": converter.build(squared(classes=7), **plain),
        "other": converter.build(squared(squash=jax.nn.sigmoid), **plain),
        "part": converter.build(squared(), **plain | {"update": {"square": 0.5, "head/*": 1}}),
        "head": converter.build(squared(), **plain | {"update": "head"}),
        "sgd": converter.build(squared(), **plain | {"optimizer": "sgd"}),
        "chosen": converter.build(squared(), **plain | adapted),
        "named": converter.build(chained(), **plain | {"update": {"square": converter.Channels(0.1), **named}}),
        "named-by-20": converter.build(chained(), **plain | {"update": {"square": converter.Channels(0.2), **named}}),
        "room": converter.build(squared(), **plain | room),
        "room-wider": converter.build(squared(), **plain | room | {"head_reads": "blocks"}),
        "room-for-others": converter.build(squared(classes=CLASSES + 2), **plain | {"update": "head"}),
        "labelled": converter.build(squared(), **plain, labels=list("abcd")),
        "relabelled": converter.build(squared(), **plain | {"batch": 2}, labels=list("abdc")),
        "labelled-grown": converter.build(squared(classes=CLASSES + 2), **plain, labels=list("abcdef")),
        "int8": converter.build(squared(), **plain | of_integers),
        "int8-by-2": converter.build(squared(), **plain | of_integers | {"batch": 2}),
        "int8-part": converter.build(squared(), **plain | of_integers | {"update": {"square": 0.5, "head/*": 1}}),
    }
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((BATCH, 6, 6, 1)).astype(np.float32), np.arange(BATCH, dtype=np.int32) % CLASSES
    for name, program in programs.items():
        program.write(out / f"interchange-{name}.tflite")
        if name == "turned":
            continue  # the GPU's forms run on the CPU too, but nothing new is saved
        with TrainingSession(program.data) as session:
            rows = slice(0, program.manifest.batch)
            session.train(x[rows], y[rows], RATE)
            (out / f"interchange-{name}.state").unlink(missing_ok=True)
            session.save(out / f"interchange-{name}.state")
    for name in ("base", "part"):
        old = as_version_1((out / f"interchange-{name}.state").read_bytes())
        (out / f"interchange-{name}-old.state").write_bytes(old)
    write_larger(out)
    pairs = [(program, state) for program in programs for state in ("base", "base-old", "part-old")]
    pairs += [("base", state) for state in programs if state not in ("base", "turned")] + [("chosen", "chosen")]
    pairs.append(("named-by-20", "named"))
    rooms = [name for name in programs if name.startswith("room")]
    pairs += [(program, state) for program in rooms for state in rooms]
    labelled = ["labelled", "relabelled", "labelled-grown"]
    pairs += [(program, state) for program in labelled for state in (*labelled, "room")]
    integers = [name for name in programs if name.startswith("int8")]
    pairs += [(program, state) for program in integers for state in (*integers, "sgd")]
    verdicts = [verdict(out, f"interchange-{program}", f"interchange-{state}") for program, state in pairs]
    verdicts += [verdict(out, *pair) for pair in write_recorded(out)]
    (out / "interchange.json").write_text(json.dumps(verdicts, indent=1))


def write_recorded(out: Path) -> list[tuple[str, str]]:
    """Copy what older versions made, beside a program of today; return which state is to be judged in which program."""
    from tests.runtime import recorded
    from tests.runtime.recorded.make import OPTIONS, ROWS, UPDATE
    from tests.runtime.recorded.make import model as recorded_model

    pairs = []
    for target in ("litert-2", "gpu"):
        program = converter.build(recorded_model(), update=UPDATE, batch=ROWS, target=target, **OPTIONS)
        program.write(out / f"recorded-{target}.tflite")
    for path in sorted(Path(recorded.__path__[0]).glob("*.state")):
        (out / f"recorded-{path.name}").write_bytes(path.read_bytes())
        pairs += [(f"recorded-{name}", f"recorded-{path.stem}") for name in ("litert-2", "gpu")]
        own = path.with_suffix(".tflite.gz")
        if own.exists():
            (out / f"recorded-{path.stem}.tflite").write_bytes(gzip.decompress(own.read_bytes()))
            pairs.append((f"recorded-{path.stem}", f"recorded-{path.stem}"))
    return pairs


def write_larger(out: Path) -> None:
    """A state of another program that is larger than any of these, which shares weights with them, in both versions."""
    state, count = unpack((out / "interchange-base.state").read_bytes()), 5 << 18
    bank = StateTensor("bank", (count,), "float32", slot=False, model=ModelTensor("bank", (count,), ()))
    spec = StateSpec("ab" * 32, (*state.spec.tensors, bank), state.spec.identity)
    data = pack(State(spec, 1, {**state.tensors, "bank": np.zeros(count, np.float32)}))
    (out / "interchange-larger.state").write_bytes(data)
    (out / "interchange-larger-old.state").write_bytes(as_version_1(data))


def verdict(out: Path, program: str, state: str) -> dict:
    """Return what the host makes of a state in a program; what it takes over is in a state file of its own."""
    spec = StateSpec.of(read_program(out / f"{program}.tflite"))
    found = compared(unpack((out / f"{state}.state").read_bytes()), spec)
    said = {"differences": found.differences, "adopted": found.adopted, "left": found.left, "proven": found.proven}
    taken = f"{program}-takes-{state}.state"
    (out / taken).write_bytes(pack(State(spec, 1, found.tensors)))
    return {"program": program, "state": f"{state}.state", **said, "refused": bool(found.refusal()), "tensors": taken}


def as_version_1(state: bytes) -> bytes:
    """Return a state as the version before wrote it, of a program whose hash nobody knows."""
    length = struct.unpack_from("<I", state, 12)[0]
    header = json.loads(state[48 : 48 + length])
    fields = ("name", "dtype", "shape", "offset", "nbytes", "sha256")
    tensors = [{field: tensor[field] for field in fields} for tensor in header["tensors"]]
    old = {"format": "pocketune-state/1", "program": "cd" * 32, "generation": header["generation"], "tensors": tensors}
    text = json.dumps(old, separators=(",", ":")).encode()
    fixed = struct.pack("<8sII", state[:8], 1, len(text))
    head = fixed + hashlib.sha256(fixed + text).digest() + text
    return head + bytes(-len(head) % 64) + state[(48 + length + 63) // 64 * 64 :]
