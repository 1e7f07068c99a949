"""`pocketune_model.h`: sizes of a program, types of its rows, and a session with functions for them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from converter.program.file import ProgramFile
from converter.program.manifest import Manifest, TensorSpec
from converter.tools.micro import literals
from converter.tools.micro.entries import features, figures, nbytes, row_values
from converter.tools.micro.memory import Memory
from converter.tools.micro.state_text import header_pieces, padding

#: Types of a row's values.
_TYPES = {
    "float32": "float", "int32": "int32_t", "bool": "bool", "int8": "int8_t", "uint8": "uint8_t", "int16": "int16_t",
}  # fmt: skip
#: Bytes of a state file in front of its header, and digits of the largest generation and of a digest.
_FRONT_BYTES, _GENERATION, _DIGEST = 48, 16, 64


def header(program: ProgramFile, arena: int, memory: Memory) -> str:
    """Return the file.

    Args:
        program: what `entries.check` lets through.
        arena: bytes that a sketch gives.
        memory: where the state and the gradients lie.
    """
    manifest = program.manifest
    sizes = {
        "kArenaBytes": arena,
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
        *_types(manifest),
        _model(manifest, memory),
    ]
    return "\n\n".join(parts) + "\n\n}  // namespace pocketune\n\n#endif  // POCKETUNE_MODEL_H_\n"


def _types(manifest: Manifest) -> list[str]:
    """Return the types of what the functions take and give."""
    values, outputs, counted = row_values(manifest), _outputs(manifest), figures(manifest)
    made = [_pointers("Row", "A row to learn from or to judge by.", values)]
    if outputs or features(manifest):
        inputs = [spec for spec in values if spec.role == "input"]
        made.append(_pointers("Input", "What the model takes of a row.", inputs))
    if outputs:
        made.append(_pointers("Output", "Where what the model gives of a row is written to.", outputs, writes=True))
    if features(manifest):
        targets = [spec for spec in values if spec.role == "target"]
        made.append(_pointers("Known", "What a row whose features are known is to come to.", targets, len(values)))
    if counted:
        members = literals.names("accuracy" if spec.role == "correct" else spec.name for spec in counted)
        lines = "\n".join(f"  float {name};" for name in members)
        made.append(f"// Means over all rows.\nstruct Evaluation {{\n{lines}\n}};")
    return made


def _pointers(name: str, says: str, specs: Sequence[TensorSpec], among: int = 0, writes: bool = False) -> str:
    """Return a type of one pointer for each of some tensors of a row; of `among` values these are the last."""
    void, const = ("void*", "") if writes else ("const void*", "const ")
    members = literals.names(spec.label if "/" in spec.name else spec.name for spec in specs)
    pairs = [(_TYPES[spec.dtype], spec.shape[1:], member) for spec, member in zip(specs, members, strict=True)]
    return _POINTERS.format(
        name=name,
        says=says,
        lines="\n".join(f"// {member}: {kind}{list(shape) or ''}" for kind, shape, member in pairs),
        explicit="explicit " if len(specs) == 1 else "",
        typed=", ".join(f"{const}{kind}* {member}" for kind, _, member in pairs),
        members=", ".join(["nullptr"] * (max(among, len(specs)) - len(specs)) + members),
        void=void,
        count=max(among, len(specs)),
    )


def _model(manifest: Manifest, memory: Memory) -> str:
    """Return the session with a function for each thing that the program does."""
    values, outputs = row_values(manifest), _outputs(manifest)
    x, y = _TYPES[values[0].dtype], _TYPES[values[-1].dtype]
    by_row = 1 in (manifest.batch, manifest.micro_batch)
    is_pair = [spec.role for spec in values] == ["input", "target"]
    functions = [_TRAIN]
    if by_row:
        functions.append(_ADD)
        if is_pair and prod(values[-1].shape[1:]) == 1:
            functions.append(_ADD_PAIR.format(x=x, y=y))
    if figures(manifest):
        functions.append(_EVALUATE)
    if outputs:
        taken = sum(spec.role == "input" for spec in values)
        functions.append(_INFER.format(values=taken))
        if len(outputs) == taken == 1:
            functions.append(_INFER_ONE.format(x=x, output=_TYPES[outputs[0].dtype]))
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
_POINTERS = """// {says}
{lines}
struct {name} {{
  {explicit}{name}({typed}) : values{{{members}}} {{}}
  {void} values[{count}];
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
