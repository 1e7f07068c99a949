"""Decoders of `transformers`: logits, and the losses of steps of LoRA by PEFT, from folders and GGUF files.

`python -m tests.decoder_frontend.oracle record` writes what the default suite compares with; `... compare 300 7 10`
draws 300 random nets from seed 7 and compares each with what `transformers` computes, every tenth in five steps of
LoRA, too. Both need transformers and peft.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import decoder_frontend
from tests.decoder_frontend import converted, nets

LENGTH = 24
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


def apart(got: np.ndarray, wanted: np.ndarray) -> float:
    """Return the largest distance, as a share of the range."""
    return float(np.abs(got - wanted).max() / np.ptp(wanted))


def cases(count: int, seed: int) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield random nets, one architecture after the other."""
    for number in range(count):
        kind = nets.MODEL_TYPES[number % len(nets.MODEL_TYPES)]
        rng = np.random.default_rng([seed, number])
        config = nets.drawn(kind, rng)
        while number // len(nets.MODEL_TYPES) % 2 and kind != "ministral" and converted.cannot(config):
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
    """Return those of a program, whose first adapters are left in a folder of PEFT's."""
    import pocketune

    program = pocketune.build(
        path, length=ids.shape[1], batch=2, update="lora-2:all-linear", optimizer="sgd", signatures=("train",)
    )
    program.write(adapter.with_suffix(".tflite"))
    with pocketune.TrainingSession(program.data) as session:
        rng = np.random.default_rng(3)
        session.save(adapter.with_suffix(".state"))
        state = {
            n: rng.standard_normal(a.shape).astype(np.float32) * 0.1 for n, a in session.state().items() if "lora" in n
        }
        assert state
        pocketune.runtime.export_adapter(
            adapter.with_suffix(".tflite"), adapter, adapter.with_suffix(".state"), base="net"
        )
        return [float(session.train(ids, y, rate)) for _ in range(steps)]


def compare(count: int, seed: int, steps_every: int = 0) -> int:
    """Compare random nets, and return how many were wrong."""
    wrong = files = 0
    for number, kind, config in cases(count, seed):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "net"
            try:
                nets.write_folder(folder, config, nets.weights(config, shapes(config)))
                ids = nets.rows(LENGTH)
                wanted = logits_there(folder, ids)
                far = {"folder": apart(logits_here(folder, ids), wanted)}
                if not converted.cannot(config):
                    converted.write(Path(place) / "net.gguf", config, nets.weights(config, shapes(config)))
                    far["gguf"] = apart(logits_here(Path(place) / "net.gguf", ids), wanted)
                    files += 1
                if steps_every and number % steps_every == 0:
                    y = np.roll(ids, -1, 1)
                    here = losses_here(folder, Path(place) / "adapter", ids, y, 0.1, 5)
                    there = losses_there(folder, Path(place) / "adapter", ids, y, 0.1, 5)
                    far["steps"] = float(np.max(np.abs(np.array(here) / np.array(there) - 1)))
                bad = {what: share for what, share in far.items() if not share < 1e-4}
            except Exception as error:  # the case is shown, and the next one tried
                bad = {type(error).__name__: str(error)[:500]}
            if bad:
                wrong += 1
                print(f"WRONG {kind} {bad} {json.dumps(config)}", flush=True)
    print(f"{count} nets from seed {seed}, {files} files, {wrong} wrong", flush=True)
    return wrong


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        sys.exit(bool(compare(*(int(n) for n in sys.argv[2:]))))
