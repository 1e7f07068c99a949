"""Random folders of PEFT, with what PEFT makes of them: logits, and the losses of six steps in float64.

python -m tests.decoder_frontend.adapters.peft_folders    records some for tests without PEFT
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, load_file, save_file

from tests.decoder_frontend import written

RECORDED = Path(__file__).parents[1] / "recorded" / "peft_folders.npz"
ENTRIES = written.metadata("llama", block_count=3)
WEIGHTS = written.weights("llama", ENTRIES)
IDS = np.random.default_rng(1).integers(0, 96, (1, 8)).astype(np.int32)
LABELS = np.roll(IDS, -1, 1)
STEPS = 6
RATES = {"sgd": 0.01, "adam": 0.003}
_LAST = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
#: Options that may be refused by name; whatever has none of them is taken.
_HARD: tuple[dict[str, Any], ...] = (
    {"init_lora_weights": "pissa"},
    {"init_lora_weights": "pissa_niter_2"},
    {"init_lora_weights": "olora"},
    {"init_lora_weights": "mica"},
    {"init_lora_weights": "loftq", "loftq_config": {"loftq_bits": 4, "loftq_iter": 1}},
    {"lora_bias": True},
    {"bias": "lora_only"},
    {"modules_to_save": ["lm_head"]},
    {"modules_to_save": ["norm"]},
    {"trainable_token_indices": [1, 2]},
    {"alora_invocation_tokens": [3, 4]},
    {"corda_config": {"corda_method": "kpm"}},
    {"layer_replication": [[0, 2], [1, 3]]},
    {"task_type": "FEATURE_EXTRACTION"},
    {"option_of_the_future": {"power": 2}},
    {"velora_config": {"num_groups": 8}},
    {"kasa_config": {}},
    {"fan_in_fan_out": True},
)
#: Options that may be written into a folder by hand; PEFT then overlooks tensors.
_EDITED: tuple[dict[str, Any], ...] = (
    {"layers_to_transform": [0, 2]},
    {"layers_to_transform": 1, "layers_pattern": "layers"},
    {"exclude_modules": ["o_proj", "layers.1.self_attn.q_proj"]},
    {"exclude_modules": r".*layers\.0\..*"},
    {"target_modules": ["q_proj", "up_proj"]},
    {"alpha_pattern": {r"layers\.1.*": 3}},
    {"use_rslora": True},
    {"lora_alpha": 1.5},
)


@dataclass(frozen=True)
class Case:
    """A folder, and what it is in PEFT.

    Attributes:
        optimizer: of the steps.
        rules: rank and alpha by weight, as PEFT has them behind loading.
        logits: [tokens, vocabulary].
        losses: [steps], none where steps are random.
        hard: whether it may be refused.
        merged: the adapted weights with their adapters in them, by name.
    """

    optimizer: str
    rules: dict[str, tuple[int, float]]
    dora: bool
    logits: np.ndarray
    losses: np.ndarray
    hard: bool
    merged: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Of a step: so small that six of them grow no rounding."""
        return RATES[self.optimizer] / max(1.0, *(alpha / rank for rank, alpha in self.rules.values())) ** 2


def options_of(rng: np.random.Generator) -> dict[str, Any]:
    """Return arguments of a `LoraConfig`, as people pass them."""
    chosen = sorted(rng.choice(_LAST, rng.integers(1, 5), replace=False).tolist())
    named = [f"layers.{rng.integers(3)}.mlp.up_proj", f"model.layers.{rng.integers(3)}.self_attn.q_proj"]
    targets = [
        chosen,
        [*chosen, *named],
        "all-linear",
        rf".*\.({'|'.join(chosen)})",
        rf"model\.layers\.[02]\..*\.{chosen[0]}",
    ]
    picked = targets[rng.choice(5, p=[0.5, 0.15, 0.15, 0.1, 0.1])]
    options: dict[str, Any] = {
        "r": int(rng.choice([1, 2, 4, 6])),
        "lora_alpha": [2, 4, 5, 16, 0.7][rng.integers(5)],
        "target_modules": picked,
        "use_rslora": bool(rng.random() < 0.3),
        "use_dora": bool(rng.random() < 0.25),
        "task_type": "CAUSAL_LM",
    }
    first = chosen[0]
    patterns = (first, f"layers.1.*{first}", r"^model\.layers\.0\..*", f".*{chosen[-1]}")
    for pattern, numbers in (("rank_pattern", [1, 3, 8]), ("alpha_pattern", [1, 8, 2.5])):
        if rng.random() < 0.35:
            options[pattern] = {str(p): rng.choice(numbers).item() for p in rng.choice(patterns, 2, replace=False)}
            if pattern == "rank_pattern":
                options[pattern] = {name: int(rank) for name, rank in options[pattern].items()}
    if isinstance(picked, list) and rng.random() < 0.25:
        options |= {"layers_to_transform": [[0, 1], 2][rng.integers(2)]}
        options |= {"layers_pattern": [None, "layers", ["h", "layers"]][rng.integers(3)]}
    if rng.random() < 0.2:
        options["exclude_modules"] = [["layers.1.self_attn.q_proj", "mlp.down_proj"], r".*\.layers\.1\..*o_proj"][
            rng.integers(2)
        ]
    begin = rng.random()
    options["init_lora_weights"] = True if begin < 0.6 else "gaussian" if begin < 0.8 else False
    if not options["use_dora"] and rng.random() < 0.15:
        options["lora_dropout"] = 0.1
    return options


def write_case(seed: int, folder: Path, trains: bool = True) -> Case | None:
    """Write a folder by PEFT and return what that makes of it; None where PEFT itself refuses it."""
    import peft
    import torch

    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    options, edited, hard = options_of(rng), {}, {}
    if (kind := rng.random()) < 0.25:
        hard = _HARD[rng.integers(len(_HARD))]
    elif kind < 0.45:
        edited = _EDITED[rng.integers(len(_EDITED))]
    known = {name: value for name, value in hard.items() if name in peft.LoraConfig.__dataclass_fields__}
    try:
        model = peft.get_peft_model(_net(), peft.LoraConfig(**(options | known)))
        for name, parameter in model.named_parameters():
            if "lora_B" in name and options["init_lora_weights"] is not False and not hard:
                torch.nn.init.normal_(parameter, std=0.15)
            if "lora_magnitude" in name:
                parameter.data *= torch.empty_like(parameter).uniform_(0.5, 2)
        model.save_pretrained(folder)
        path = folder / "adapter_config.json"
        path.write_text(
            json.dumps(json.loads(path.read_text()) | edited | (hard if hard.keys() - known.keys() else {}))
        )
        loaded = peft.PeftModel.from_pretrained(_net(), folder, is_trainable=True).double()
    except (
        ValueError,
        TypeError,
        KeyError,
        RuntimeError,
        NotImplementedError,
        ImportError,
        AttributeError,
        ZeroDivisionError,
    ):
        return None
    optimizer = ("sgd", "adam")[seed % 2]
    rules = {
        f"{name.removeprefix('base_model.model.')}.weight": (
            module.r["default"],
            module.scaling["default"] * module.r["default"],
        )
        for name, module in loaded.named_modules()
        if getattr(module, "r", None)
    }
    ids, labels = torch.from_numpy(IDS).long(), torch.from_numpy(LABELS).long()
    with torch.no_grad():
        logits = loaded.eval()(ids).logits[0].numpy()
    case = Case(optimizer, rules, options["use_dora"], logits, np.zeros(0), bool(hard))
    losses = []
    if trains and not options.get("lora_dropout"):
        loaded.train()
        trained = [p for p in loaded.parameters() if p.requires_grad]
        update = (torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam)(trained, case.rate)
        for _ in range(STEPS):
            loss = torch.nn.functional.cross_entropy(loaded(ids).logits[0], labels[0])
            update.zero_grad()
            loss.backward()
            update.step()
            losses.append(loss.item())
    whole = {} if trains or hard else {name: w.numpy() for name, w in loaded.merge_and_unload().state_dict().items()}
    return replace(case, losses=np.array(losses), merged={name: whole[name] for name in rules if name in whole})


def _net() -> Any:
    import torch
    import transformers

    from tests.decoder_frontend.test_decoder import in_transformers

    made = in_transformers(transformers, "llama", ENTRIES, 96)
    made.load_state_dict({name: torch.from_numpy(array) for name, array in WEIGHTS.items()})
    return made.eval()


def recorded() -> dict[int, tuple[Case, dict[str, Any], dict[str, np.ndarray]]]:
    """Return cases by seed, with the configuration and the tensors of each folder."""
    found = {}
    with np.load(RECORDED) as file:
        for seed, said in json.loads(str(file["cases"])).items():
            case = Case(
                said["optimizer"],
                {name: (rank, alpha) for name, (rank, alpha) in said["rules"].items()},
                said["dora"],
                file[f"{seed}/logits"],
                file[f"{seed}/losses"],
                said["hard"],
            )
            found[int(seed)] = case, said["config"], load(file[f"{seed}/tensors"].tobytes())
    return found


def write_recorded(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Write a folder of a recorded case."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")


def _record(seeds: list[int]) -> None:
    import tempfile

    arrays, cases = dict[str, np.ndarray](), dict[str, Any]()
    for seed in seeds:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            case = write_case(seed, folder)
            assert case is not None
            config = json.loads((folder / "adapter_config.json").read_text())
            load_file(folder / "adapter_model.safetensors")
            arrays[f"{seed}/tensors"] = np.frombuffer((folder / "adapter_model.safetensors").read_bytes(), np.uint8)
        arrays |= {f"{seed}/logits": case.logits, f"{seed}/losses": case.losses}
        kept = {"optimizer": case.optimizer, "rules": case.rules, "dora": case.dora, "hard": case.hard}
        cases[str(seed)] = {**kept, "config": config}
    RECORDED.parent.mkdir(exist_ok=True)
    np.savez_compressed(RECORDED, cases=json.dumps(cases), **arrays)


if __name__ == "__main__":
    import sys

    _record([int(one) for one in sys.argv[1:]])
