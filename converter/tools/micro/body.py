"""`pocketune_model.cc`: a program as constants, and the operators of TensorFlow Lite Micro that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from converter.program.file import ProgramFile
from converter.program.manifest import INITIAL
from converter.tools.micro import literals
from converter.tools.micro.entries import FEATURES, Entry, figures, nbytes, row_values, step_of
from converter.tools.micro.joined import Joined
from converter.tools.micro.memory import Memory
from converter.tools.micro.state_text import header_pieces, padding

_STORED = {"float32": "Type::kFloat32", "int32": "Type::kInt32", "bool": "Type::kBool"}
#: Parts of builtins' names that the resolver writes in another way.
_PARTS = {"MATMUL": "MatMul", "PADV2": "PadV2", "CUMSUM": "CumSum", "2D": "2D", "V2": "V2"}


def body(program: ProgramFile, entries: Sequence[Entry], models: Joined, memory: Memory) -> str:
    """Return the file.

    Args:
        program: what `entries.check` lets through.
        entries: its signatures.
        models: their models.
        memory: where the state and the gradients lie.
    """
    sums, kept = (", ".join(map(str, starts)) for starts in (memory.gradients, memory.features))
    parts = [
        _FRONT,
        f"alignas(16) const uint8_t kModels[] = {{\n{literals.array(models.data)}\n}};",
        *_state(program, memory),
        "const char* const kHeader[] = {\n" + ",\n\n".join(map(literals.string, header_pieces(program))) + ",\n};",
        *_bindings(entries),
        *_targets(program),
        *([f"const uint32_t kGradients[] = {{{sums}}};"] if sums else []),
        *([f"const uint32_t kFeatures[] = {{{kept}}};"] if kept else []),
        _OPERATORS.format(
            count=len(models.operators), adds="\n".join(f"    {add_of(name)}();" for name in models.operators)
        ),
        _program(program, entries, models, memory),
    ]
    return "\n\n".join(parts) + "\n"


def add_of(builtin: str) -> str:
    """Return the function of a resolver that registers a builtin: `AddConv2D` for `CONV_2D`."""
    return "Add" + "".join(_PARTS.get(part, part.title()) for part in builtin.split("_"))


def _state(program: ProgramFile, memory: Memory) -> list[str]:
    """Return the state as built, and the table of its tensors."""
    manifest = program.manifest
    channels = {choice.indices: choice.channels for choice in manifest.choices}
    made, lines, end = list[str](), list[str](), 0
    for number, (tensor, start) in enumerate(zip(manifest.state_tensors, memory.state, strict=True)):
        raw, size = program.metadata[INITIAL + tensor.tensor], nbytes(tensor.shape, tensor.dtype)
        made.append(f"alignas(4) const uint8_t kInitial{number}[] = {{\n{literals.array(raw)}\n}};")
        zeros = padding(end)
        end += zeros + size
        fields = (
            _STORED[tensor.dtype], start, size, f"kInitial{number}", literals.truth(len(raw) != size),
            channels.get(tensor.tensor, 0), zeros,
        )  # fmt: skip
        lines.append(f"{{{', '.join(map(str, fields))}}}")
    return [*made, f"const StateTensor kTensors[] = {{\n{literals.rows(lines)}\n}};"]


def _bindings(entries: Sequence[Entry]) -> list[str]:
    made = []
    for entry in entries:
        for way, bindings in (("Inputs", entry.inputs), ("Outputs", entry.outputs)):
            lines = literals.rows([f"{{Role::k{b.role}, {b.index}, {b.nbytes}}}" for b in bindings])
            made.append(f"const Binding {_named(entry)}{way}[] = {{\n{lines}\n}};")
    return made


def _targets(program: ProgramFile) -> list[str]:
    """Return what the loss takes for each target."""
    values, made, lines = row_values(program.manifest), list[str](), list[str]()
    for number, (name, labels) in enumerate(program.manifest.target_labels.items()):
        place, spec = next((i, s) for i, s in enumerate(values) if s.name == name)
        if labels.only:
            made.append(f"const float kOnly{number}[] = {{{', '.join(map(literals.number, labels.only))}}};")
        fields = (
            place, _STORED[spec.dtype], prod(spec.shape[1:]), labels.count or 0, literals.truth(labels.masked),
            literals.truth(labels.ignored is not None), labels.ignored or 0,
            literals.number(-inf if labels.least is None else labels.least),
            literals.number(inf if labels.most is None else labels.most),
            len(labels.only), f"kOnly{number}" if labels.only else "nullptr",
        )  # fmt: skip
        lines.append(f"{{{', '.join(map(str, fields))}}}")
    return [*made, f"const Target kTargets[] = {{\n{literals.rows(lines)}\n}};"] if lines else []


def _program(program: ProgramFile, entries: Sequence[Entry], models: Joined, memory: Memory) -> str:
    manifest = program.manifest
    known = {entry.name: (entry, start) for entry, start in zip(entries, models.starts, strict=True)}
    names = (step_of(manifest), "apply" if manifest.updating == "apply" else "", "evaluate", "infer", FEATURES)
    return _PROGRAM.format(
        signatures=literals.rows([_signature(*known[name]) if name in known else _NONE for name in names]),
        batch=manifest.batch,
        values=len(row_values(manifest)),
        figures=len(figures(manifest)),
        rate=literals.number(1.0 if manifest.learning_rate is None else manifest.learning_rate),
        tensors=len(memory.state),
        gradients=len(memory.gradients),
        sums="kGradients" if memory.gradients else "nullptr",
        kept="kFeatures" if memory.features else "nullptr",
        feature_bytes=memory.feature_bytes,
        targets=len(manifest.target_labels),
        checked="kTargets" if manifest.target_labels else "nullptr",
        state_bytes=memory.state_bytes,
        gradient_bytes=memory.gradient_bytes,
        header_bytes=sum(len(piece.encode()) for piece in header_pieces(program)),
    )


def _signature(entry: Entry, start: int) -> str:
    name, counts = _named(entry), f"{len(entry.inputs)}, {len(entry.outputs)}"
    return f"{{kModels + {start}, {entry.rows}, {literals.truth(entry.whole)}, {counts}, {name}Inputs, {name}Outputs}}"


def _named(entry: Entry) -> str:
    return "k" + entry.name.title().replace("_", "")


#: A signature that the program has not.
_NONE = "{nullptr, 0, false, 0, 0, nullptr, nullptr}"
_FRONT = """// Made by `pocketune export-c`. Do not edit.
#include "pocketune_model.h"

#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"

namespace pocketune {
namespace {

// The signatures' models; constants that they share stand in it once."""
_OPERATORS = """struct Operators : tflite::MicroMutableOpResolver<{count}> {{
  Operators() {{
{adds}
  }}
}};

const tflite::MicroOpResolver& known_operators() {{
  static const Operators operators;
  return operators;
}}

}}  // namespace"""
_PROGRAM = """const Program kProgram = {{
    known_operators, kLeastArenaBytes,
{signatures}
    {batch}, {values}, {figures}, {rate}, {tensors}, {gradients}, {targets}, kTensors, {sums}, {checked}, {state_bytes},
    {gradient_bytes}, {feature_bytes}, {kept}, kHeader, {header_bytes},
}};

}}  // namespace pocketune"""
