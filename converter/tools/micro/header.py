"""`pocketune_model.h`: sizes of a program, types of its rows, and a session with functions for them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from math import prod

from converter.program.file import ProgramFile
from converter.program.manifest import Manifest, TensorSpec
from converter.tools.micro import literals
from converter.tools.micro.entries import features, figures, int8_values, nbytes, row_values
from converter.tools.micro.int8_inputs import Int8Scale
from converter.tools.micro.memory import Memory
from converter.tools.micro.state_text import header_pieces, padding

#: Types of a row's values.
_TYPES = {
    "float32": "float", "int32": "int32_t", "bool": "bool", "int8": "int8_t", "uint8": "uint8_t", "int16": "int16_t",
}  # fmt: skip
#: Bytes of a state file in front of its header, and digits of the largest generation and of a digest.
_FRONT_BYTES, _GENERATION, _DIGEST = 48, 16, 64


def header(program: ProgramFile, arena: int, least: int, memory: Memory) -> str:
    """Return the file.

    Args:
        program: what `entries.check` lets through.
        arena: bytes that a sketch gives.
        least: of which it may give no less.
        memory: where the state and the gradients lie.
    """
    manifest, integers = program.manifest, int8_values(program)
    sizes = {
        "kArenaBytes": arena,
        "kLeastArenaBytes": least,
        "kStateBytes": memory.state_bytes,
        "kStateFileBytes": _state_file(program),
        "kBatch": manifest.batch,
    } | ({"kFeatureBytes": memory.feature_bytes} if features(manifest) else {})
    parts = [
        _FRONT.format(
            name=" ".join(manifest.name.split()),
            hash=manifest.graph_hash[:16],
            constants="\n".join(f"constexpr size_t {name} = {size};" for name, size in sizes.items()),
        ),
        *_types(manifest, integers),
        _model(manifest, memory, bool(integers)),
    ]
    return "\n\n".join(parts) + "\n\n}  // namespace pocketune\n\n#endif  // POCKETUNE_MODEL_H_\n"


def _types(manifest: Manifest, integers: Mapping[int, Int8Scale]) -> list[str]:
    """Return the types of what the functions take and give."""
    values, outputs, counted = row_values(manifest), _outputs(manifest), figures(manifest)
    names = literals.names(map(_label, values))
    made = [
        _QUANTIZED.format(name=names[i], scale=literals.number(of.scale), zero=of.zero_point)
        for i, of in integers.items()
    ]
    made.append(_pointers("Row", "A row to learn from or to judge by.", values, integers))
    if outputs or features(manifest):
        inputs = [spec for spec in values if spec.role == "input"]
        made.append(_pointers("Input", "What the model takes of a row.", inputs, integers))
    if outputs:
        made.append(_places(outputs))
    if features(manifest):
        targets = [spec for spec in values if spec.role == "target"]
        made.append(_pointers("Known", "What a row whose features are known is to come to.", targets, (), len(values)))
    if counted:
        members = literals.names("accuracy" if spec.role == "correct" else spec.name for spec in counted)
        lines = "\n".join(f"  float {name};" for name in members)
        made.append(f"// Means over all rows.\nstruct Evaluation {{\n{lines}\n}};")
    return made


def _pointers(name: str, says: str, specs: Sequence[TensorSpec], integers: Container[int], among: int = 0) -> str:
    """Return a type of some values of a row; of `among` values these are the last, those in front are not read."""
    members, kinds = literals.names(map(_label, specs)), [_TYPES[spec.dtype] for spec in specs]
    front = ["{nullptr}"] * (max(among, len(specs)) - len(specs))
    made = []
    for stored in (False, True) if any(i in integers for i in range(len(specs))) else (False,):
        as_int8 = [stored and i in integers for i in range(len(specs))]
        types = ["int8_t" if of else kind for of, kind in zip(as_int8, kinds, strict=True)]
        given = [f"{{{member}, true}}" if of else f"{{{member}}}" for of, member in zip(as_int8, members, strict=True)]
        typed = ", ".join(f"const {kind}* {member}" for kind, member in zip(types, members, strict=True))
        explicit = "explicit " if len(specs) == 1 else ""
        made.append(f"  {explicit}{name}({typed}) : values{{{', '.join(front + given)}}} {{}}")
    return _VALUES.format(
        name=name, says=says, lines=_listed(specs, members), made="\n".join(made), count=max(among, len(specs))
    )


def _places(outputs: Sequence[TensorSpec]) -> str:
    """Return a type of places for what the model gives."""
    members = literals.names(map(_label, outputs))
    return _OUTPUT.format(
        lines=_listed(outputs, members),
        explicit="explicit " if len(outputs) == 1 else "",
        typed=", ".join(f"{_TYPES[spec.dtype]}* {member}" for spec, member in zip(outputs, members, strict=True)),
        members=", ".join(members),
        count=len(outputs),
    )


def _label(spec: TensorSpec) -> str:
    return spec.label if "/" in spec.name else spec.name


def _listed(specs: Sequence[TensorSpec], members: Sequence[str]) -> str:
    pairs = zip(specs, members, strict=True)
    return "\n".join(f"// {member}: {_TYPES[spec.dtype]}{list(spec.shape[1:]) or ''}" for spec, member in pairs)


def _model(manifest: Manifest, memory: Memory, in_int8: bool) -> str:
    """Return the session with a function for each thing that the program does; `in_int8`: of rows in int8, too."""
    values, outputs = row_values(manifest), _outputs(manifest)
    y, kinds = _TYPES[values[-1].dtype], [_TYPES[values[0].dtype], *(["int8_t"] if in_int8 else [])]
    by_row = 1 in (manifest.batch, manifest.micro_batch)
    is_pair = [spec.role for spec in values] == ["input", "target"]
    functions = [_TRAIN]
    if by_row:
        functions.append(_ADD)
        if is_pair and prod(values[-1].shape[1:]) == 1:
            functions += [_ADD_PAIR.format(x=x, y=y) for x in kinds]
    if figures(manifest):
        functions.append(_EVALUATE)
    if outputs:
        taken = sum(spec.role == "input" for spec in values)
        functions.append(_INFER.format(values=taken))
        if len(outputs) == taken == 1:
            functions += [_INFER_ONE.format(x=x, output=_TYPES[outputs[0].dtype]) for x in kinds]
    if features(manifest):
        functions.append(_FEATURES)
        if by_row:
            functions.append(_ADD_KNOWN)
    sizes = {"state_": "kStateBytes", "gradients_": memory.gradient_bytes or ""}
    sizes["features_"] = "kBatch * kFeatureBytes" if features(manifest) else ""
    return _MODEL.format(
        given=", ".join(name if size else "nullptr" for name, size in sizes.items()),
        functions="\n".join(functions),
        room="\n".join(f"  alignas(8) uint8_t {name}[{size}];" for name, size in sizes.items() if size),
    )


def _outputs(manifest: Manifest) -> list[TensorSpec]:
    return list(manifest.signatures["infer"].giving("output")) if "infer" in manifest.signatures else []


def _state_file(program: ProgramFile) -> int:
    """Return the bytes of the largest state file."""
    tensors = program.manifest.state_tensors
    end = _FRONT_BYTES + sum(len(piece.encode()) for piece in header_pieces(program))
    end += _GENERATION + _DIGEST * len(tensors)
    for tensor in tensors:
        end += padding(end) + nbytes(tensor.shape, tensor.dtype)
    return end


_FRONT = """// Made by `pocketune export-c` of the program {name!r} ({hash}...). Do not edit.
#ifndef POCKETUNE_MODEL_H_
#define POCKETUNE_MODEL_H_

#include <cstddef>
#include <cstdint>

#include "pocketune.h"

namespace pocketune {{

extern const Program kProgram;

// What begin() takes, what a Model keeps of the state in RAM, what each place of a storage has to hold, rows of a step.
{constants}"""
_QUANTIZED = """// The int8 that the program computes with in place of a number of {name}.
inline int8_t quantized_{name}(float number) {{ return quantized(number, {scale}, {zero}); }}"""
_VALUES = """// {says}
{lines}
struct {name} {{
{made}
  Value values[{count}];
}};"""
_OUTPUT = """// Where what the model gives of a row is written to.
{lines}
struct Output {{
  {explicit}Output({typed}) : values{{{members}}} {{}}
  void* values[{count}];
}};"""
_MODEL = """class Model : public Session {{
 public:
  Model() : Session(kProgram, {given}) {{}}

{functions}

 private:
{room}
}};"""
_TRAIN = """  // One step on at most kBatch rows, with the mean loss before it.
  Status train(const Row* rows, size_t count, float* loss = nullptr) {
    return Session::train(rows[0].values, count, loss);
  }"""
_ADD = """  // One row of a step; with the last of kBatch rows the weights change.
  Status train_row(const Row& row, float* loss = nullptr) { return add(row.values, loss); }"""
_ADD_PAIR = (
    """  Status train_row(const {x}* x, {y} y, float* loss = nullptr) {{ return train_row(Row(x, &y), loss); }}"""
)
_FEATURES = """  // What is frozen in front makes of a row, kFeatureBytes: to be learned from as often as need be.
  Status features(const Input& row, void* to) { return Session::features(row.values, to); }"""
_ADD_KNOWN = """  // As train_row, of a row whose features are known.
  Status train_features(const void* features, const Known& row, float* loss = nullptr) {
    return add(row.values, loss, features);
  }"""
_EVALUATE = """  Status evaluate(const Row* rows, size_t count, Evaluation* result) {
    return Session::evaluate(rows[0].values, count, reinterpret_cast<float*>(result));
  }"""
_INFER = """  // Where a call takes several rows, what it gives of them lies one behind the other.
  Status infer(const Input* rows, size_t count, const Output& output) {{
    return Session::infer(rows[0].values, {values}, count, output.values);
  }}"""
_INFER_ONE = """  Status infer(const {x}* x, {output}* output) {{
    const Input row(x);
    return infer(&row, 1, Output(output));
  }}"""
