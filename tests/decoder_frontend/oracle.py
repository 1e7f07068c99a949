"""Decoders of `transformers`: logits, and the losses of steps of LoRA by PEFT, from folders and GGUF files.

`python -m tests.decoder_frontend.oracle record` writes what the default suite compares with; `... compare 300 7 10`
draws 300 random nets from seed 7 and compares each with what `transformers` computes, every tenth in five steps of
LoRA, too; names of architectures behind the numbers are those that are drawn. Both need transformers and peft.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from converter.frontends import decoder as decoder_frontend
from tests.decoder_frontend import converted, nets

LENGTH = 24
#: Of the steps of LoRA: much more, and losses of random nets go their own ways.
RATE = 0.01
#: Logits that are recorded: of the first row every third.
SHOWN = (slice(1), slice(2, None, 3))
RECORDED = Path(__file__).with_name("recorded.npz")


def shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    """Return the shapes of a net's parameters by name, without what is tied."""
    import torch
    import transformers

    made = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        net = transformers.AutoModelForCausalLM.from_config(made)
    tied = made.tie_word_embeddings
    return {n: list(t.shape) for n, t in net.state_dict().items() if not (tied and n == "lm_head.weight")}


def network(folder: Path) -> Any:
    """Return the net of a folder in float32, as it infers."""
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="float32", attn_implementation="eager", local_files_only=True
    ).eval()


def logits_there(folder: Path, ids: np.ndarray) -> np.ndarray:
    """Return what transformers computes, [rows, length, vocabulary]."""
    import torch

    with torch.no_grad():
        return network(folder)(torch.from_numpy(ids).long(), use_cache=False).logits.numpy()


def logits_here(path: Path, ids: np.ndarray) -> np.ndarray:
    """Return what the decoder of a folder or file computes."""
    model = decoder_frontend.Model(path, length=ids.shape[1]).jax_model()
    return np.asarray(jax.jit(model.apply)({name: np.asarray(w) for name, w in model.params.items()}, ids))


def separate(got: np.ndarray, wanted: np.ndarray) -> float:
    """Return the largest distance, as a share of the range."""
    return float(np.abs(got - wanted).max() / np.ptp(wanted))


def cases(count: int, seed: int, kinds: Sequence[str] = nets.MODEL_TYPES) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield random nets, one architecture after the other."""
    for number in range(count):
        kind = kinds[number % len(kinds)]
        rng = np.random.default_rng([seed, number])
        config = nets.drawn(kind, rng)
        while number // len(kinds) % 2 and kind not in converted.WITHOUT and converted.cannot(config):
            config = nets.drawn(kind, rng)
        yield number, kind, config


def losses_there(folder: Path, adapter: Path, ids: np.ndarray, y: np.ndarray, rate: float, steps: int) -> list[float]:
    """Return the losses of plain descent on an adapter, before each step."""
    import peft
    import torch

    net = peft.PeftModel.from_pretrained(network(folder), adapter, is_trainable=True)
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], rate)
    losses = []
    for _ in range(steps):
        logits = net(torch.from_numpy(ids).long(), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(y).long().flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def losses_here(path: Path, adapter: Path, ids: np.ndarray, y: np.ndarray, rate: float, steps: int) -> list[float]:
    """Return those of a program that begins with an adapter of PEFT's."""
    import pocketune

    program = pocketune.build(
        path, length=ids.shape[1], batch=2, update="lora-2:all-linear", optimizer="sgd", signatures=("train",)
    )
    program.write(adapter / "net.tflite")
    assert not pocketune.runtime.import_adapter(adapter / "net.tflite", adapter, adapter / "net.state")
    with pocketune.TrainingSession(adapter / "net.tflite") as session:
        session.restore(adapter / "net.state")
        return [float(session.train(ids, y, rate)) for _ in range(steps)]


def compare(count: int, seed: int, steps_every: int = 0, kinds: Sequence[str] = nets.MODEL_TYPES) -> int:
    """Compare random nets, and return how many were wrong."""
    wrong = files = 0
    for number, kind, config in cases(count, seed, kinds):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "net"
            try:
                nets.write_folder(folder, config, nets.weights(config, shapes(config)))
                ids = nets.rows(LENGTH)
                wanted = logits_there(folder, ids)
                far = {"folder": separate(logits_here(folder, ids), wanted)}
                if not converted.cannot(config):
                    converted.write(Path(place) / "net.gguf", config, nets.weights(config, shapes(config)))
                    far["gguf"] = separate(logits_here(Path(place) / "net.gguf", ids), wanted)
                    files += 1
                if steps_every and number % steps_every == 0:
                    adapter, y = Path(place) / "adapter", np.roll(ids, -1, 1)
                    adapter.mkdir()
                    write_adapter(adapter, adapters(shapes(config)))
                    here = losses_here(folder, adapter, ids, y, RATE, 5)
                    there = losses_there(folder, adapter, ids, y, RATE, 5)
                    far["steps"] = float(np.max(np.abs(np.array(here) / np.array(there) - 1)))
                bad = {what: share for what, share in far.items() if not share < 1e-4}
            except Exception as error:  # the case is shown, and the next one tried
                bad = {type(error).__name__: str(error)[:500]}
            if bad:
                wrong += 1
                print(f"WRONG {kind} {bad} {json.dumps(config)}", flush=True)
    print(f"{count} nets from seed {seed}, {files} files, {wrong} wrong", flush=True)
    return wrong


def record() -> None:
    """Write what the default suite compares with: two nets of each architecture, with logits and losses of LoRA."""
    recorded: dict[str, np.ndarray] = {}
    told: dict[str, Any] = {}
    for number, kind, config in cases(2 * len(nets.MODEL_TYPES), 5):
        own = shapes(config)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "net"
            nets.write_folder(folder, config, nets.weights(config, own))
            ids = nets.rows(LENGTH)
            name = f"{kind}_{number // len(nets.MODEL_TYPES)}"
            recorded[name] = logits_there(folder, ids)[SHOWN].astype(np.float32)
            told[name] = {"config": config, "shapes": own}
            if number < len(nets.MODEL_TYPES):
                recorded[f"{name}_losses"] = np.array(losses_of_descent(folder, ids, own))
    np.savez_compressed(RECORDED, told=np.array(json.dumps(told)), **recorded)


def adapters(own: Mapping[str, Any]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return first adapters of rank 2 by the name of the product, A [2, inputs] and B [outputs, 2]."""
    made = {}
    for name, shape in own.items():
        if name.endswith("_proj.weight"):
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            a, b = rng.standard_normal((2, shape[1])), rng.standard_normal((shape[0], 2))
            made[name.removesuffix(".weight")] = (0.3 * a.astype(np.float32), 0.1 * b.astype(np.float32))
    return made


def losses_of_descent(folder: Path, ids: np.ndarray, own: Mapping[str, Any]) -> list[float]:
    """Return the losses of five steps of plain descent on `adapters`, by PEFT."""
    with tempfile.TemporaryDirectory() as place:
        write_adapter(Path(place), adapters(own))
        return losses_there(folder, Path(place), ids, np.roll(ids, -1, 1), RATE, 5)


def write_adapter(folder: Path, found: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Write a folder of PEFT, of rank 2 and alpha 4."""
    targets = sorted({name.rpartition(".")[2] for name in found})
    told = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(told | {"lora_dropout": 0.0, "bias": "none"}))
    arrays = {
        f"base_model.model.{name}.lora_{letter}.weight": np.ascontiguousarray(array)
        for name, pair in found.items()
        for letter, array in zip("AB", pair, strict=True)
    }
    save_file(arrays, folder / "adapter_model.safetensors")


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        numbers = [int(given) for given in sys.argv[2:] if given.isdecimal()]
        sys.exit(bool(compare(*numbers, kinds=sys.argv[2 + len(numbers) :] or nets.MODEL_TYPES)))
    record()
