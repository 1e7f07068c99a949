"""Adapters as the engine LiteRT-LM takes them: a `.tflite` without operators, whose tensors are the factors."""

from __future__ import annotations

import os
import re

import flatbuffers
import numpy as np

from converter.program.adapters import factors, read_adapters
from converter.program.flatbuffer.schema import FILE_IDENTIFIER, VERSION, generated
from converter.runtime.export.export import State, state_tensors
from converter.runtime.export.low_rank import ProgramPath, module_of, opened
from converter.support.errors import UsageError
from converter.support.files import write_atomically

#: Projections of an attention by the letters that the engine has for them, in its order.
_PROJECTIONS = ("q", "k", "v", "o")
_LAYER = re.compile(r"(?:.*\.)?layers\.(\d+)\.(?:.*\.)?([qkvo])_proj")
#: The engine takes ranks that are multiples of it.
_RANKS = 4
_CALLED = "lora_params"


def export_litert_lm_adapter(program: ProgramPath, path: str | os.PathLike, state: State = None) -> None:
    """Write the adapters of a state as the file that `LoraConfig(lora_path=...)` of LiteRT-LM names.

    The base must have been exported with `lora_ranks` of this rank, else the engine takes the file without effect.

    Args:
        program: whose adapters are of q_proj, k_proj, v_proj and o_proj of every layer, and of nothing else: the format
            has a place for these alone.
        path: where to.
        state: whose; see `export_inference`.

    Raises:
        UsageError: the adapters are of other layers, of several ranks or of one that the engine does not take, or the
            state is not one of the program, or the file cannot be written.
    """
    program = opened(program)
    found = factors(program, state_tensors(program, state))
    layers: dict[int, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for adapter in read_adapters(program):
        if adapter.magnitude is not None:
            raise UsageError(
                f"LiteRT-LM's adapters are low-rank only, and that of {adapter.weight} is a DoRA adapter, whose column "
                "norms the file cannot hold: build with update='lora-8:q_proj,k_proj,v_proj,o_proj', or export for "
                "PEFT",
                page="adapters",
            )
        place = _LAYER.fullmatch(module_of(adapter))
        if place is None:
            raise _refused(f"and {adapter.weight} is none")
        a, b = found[adapter.weight]
        layers.setdefault(int(place[1]), {})[place[2]] = a * np.float32(adapter.scale), b
    numbers = range(len(layers))
    if not layers or set(layers) != set(numbers) or any(set(own) != set(_PROJECTIONS) for own in layers.values()):
        raise _refused("and some have none")
    ranks = {b.shape[0] for own in layers.values() for _, b in own.values()}
    rank = min(ranks)
    if len(ranks) > 1 or rank % _RANKS:
        raise UsageError(
            f"LiteRT-LM takes adapters of one rank that is a multiple of {_RANKS}, and these have "
            f"{', '.join(map(str, sorted(ranks)))}",
            page="adapters",
        )
    tensors = {
        f"lora_atten_{letter}_{which}_prime_weight_{number}": array
        for number in numbers
        for letter in _PROJECTIONS
        for which, array in zip("ab", layers[number][letter], strict=True)
    }
    write_atomically(path, _file(tensors, rank))


def _refused(why: str) -> UsageError:
    return UsageError(
        f"LiteRT-LM's adapters are of q_proj, k_proj, v_proj and o_proj of every layer and of nothing else, {why}: "
        "build with update='lora-8:q_proj,k_proj,v_proj,o_proj', or export for PEFT",
        page="adapters",
    )


def _file(tensors: dict[str, np.ndarray], rank: int) -> bytes:
    """Return the flatbuffer as litert-torch's `LoRA.to_tflite` has it: the number of a buffer stands for the rank."""
    graph = generated.SubGraphT(name=_CALLED, tensors=[], inputs=[], outputs=[], operators=[])
    buffers = [generated.BufferT(data=[])]
    for name, array in tensors.items():
        kind = generated.TensorType.FLOAT32
        graph.tensors.append(generated.TensorT(name=name, shape=list(array.shape), type=kind, buffer=len(buffers)))
        buffers.append(generated.BufferT(data=np.ascontiguousarray(array, "<f4").reshape(-1).view(np.uint8)))
    model = generated.ModelT(
        version=VERSION,
        description=_CALLED,
        operatorCodes=[],
        subgraphs=[graph],
        buffers=buffers,
        metadata=[generated.MetadataT(name="lora_rank", buffer=rank)],
    )
    builder = flatbuffers.Builder(sum(array.nbytes for array in tensors.values()) + (1 << 16))
    builder.Finish(model.Pack(builder), FILE_IDENTIFIER)
    return bytes(builder.Output())
