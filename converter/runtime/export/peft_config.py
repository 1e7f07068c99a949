"""Configuration of a PEFT adapter: every option of `adapter_config.json` is read, means nothing here, or is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converter.support.errors import UsageError
from converter.support.strict_json import parse_json

CONFIG = "adapter_config.json"
#: Options that are computed with, in `PeftConfig`.
_READ = frozenset(
    {
        *("peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "init_lora_weights"),
        *("rank_pattern", "alpha_pattern", "target_modules", "exclude_modules", "layers_to_transform"),
        "layers_pattern",
    }
)
#: Options that change no number: where the adapter is from, and settings of options that stand below.
_SAYS_NOTHING = frozenset(
    {
        *("base_model_name_or_path", "revision", "auto_mapping", "peft_version", "inference_mode", "runtime_config"),
        *("megatron_core", "qalora_group_size", "eva_config"),
    }
)
#: What each of the others does where it is on; PEFT 0.21.2 has no more.
_REFUSED = {
    "alora_invocation_tokens": "the adapter acts behind these tokens alone",
    "arrow_config": "several adapters are mixed for each token",
    "bias": "biases of the base train beside it",
    "corda_config": "the base is changed before the training",
    "ensure_weight_tying": "tied layers share one adapter",
    "fan_in_fan_out": "the base has its matrices the other way round",
    "kasa_config": "the base is changed before the training, and the products are scaled",
    "layer_replication": "the base has layers several times",
    "loftq_config": "the base is rounded and the adapter is of what that leaves",
    "lora_bias": "B has a bias",
    "lora_ga_config": "the base is changed before the training",
    "megatron_config": "the layers are those of Megatron",
    "modules_to_save": "these layers of the base train whole beside it",
    "monteclora_config": "the weights are drawn at random",
    "target_parameters": "it is of tensors that are no layer's weight",
    "trainable_token_indices": "rows of the embedding train beside it",
    "use_bdlora": "the factors are made of blocks",
    "use_qalora": "the inputs of A are means of groups",
    "velora_config": "its gradients are of compressed activations",
}
#: Ways to begin that leave the base as it is.
_BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal")
#: In a configuration without them, PEFT takes this for either.
_USUAL = 8
_INSTEAD = (
    "Merge the adapter into its base by PEFT (model.merge_and_unload().save_pretrained(...)) and build the program of "
    "that"
)


@dataclass(frozen=True)
class PeftConfig:
    """What `adapter_config.json` says of a LoRA or DoRA, by the rules of PEFT.

    Attributes:
        path: of the file.
        options: by name; those that are not there have PEFT's defaults.
    """

    path: Path
    options: Mapping[str, Any]

    @property
    def dora(self) -> bool:
        """Whether columns have lengths of their own."""
        return bool(self.options.get("use_dora"))

    @property
    def dropout(self) -> float:
        """How likely an input of A is zero in a step."""
        return float(self.options.get("lora_dropout") or 0)

    def rank(self, module: str) -> float:
        """Return the rank of a module's factors."""
        return self._number("rank_pattern", "r", module)

    def scale(self, module: str) -> float:
        """Return what PEFT multiplies A B of a module by."""
        rank, alpha = self.rank(module), self._number("alpha_pattern", "lora_alpha", module)
        return alpha / (math.sqrt(rank) if self.options.get("use_rslora") else rank)

    def targets(self, module: str) -> bool:
        """Return whether PEFT gives a module an adapter; of one that has none it overlooks the tensors."""
        targets, excluded = self.options.get("target_modules"), self.options.get("exclude_modules") or ()
        if self._named("exclude_modules", excluded, module):
            return False
        if targets == "all-linear":
            return module != "lm_head"
        return self._named("target_modules", targets, module) and self._in_layers(module)

    def _named(self, option: str, given: Any, module: str) -> bool:
        if isinstance(given, str):
            return re.fullmatch(self._expression(option, given), module) is not None
        return any(f".{module}".endswith(f".{name}") for name in given)

    def _in_layers(self, module: str) -> bool:
        """Return whether a module is in a layer of `layers_to_transform`, where that names some."""
        layers, patterns = self.options.get("layers_to_transform"), self.options.get("layers_pattern")
        if layers is None or layers == []:
            return True
        lists = [r".*?\.[^.]*"]
        if patterns:
            named = [patterns] if isinstance(patterns, str) else patterns
            lists = [rf"(?:^|.*?\.){self._expression('layers_pattern', one)}" for one in named]
        found = next((m for one in lists if (m := re.match(rf"{one}\.(\d+)\.", module))), None)
        return found is not None and int(found[found.re.groups]) in ([layers] if isinstance(layers, int) else layers)

    def _number(self, pattern: str, usual: str, module: str) -> float:
        given = self.options.get(pattern) or {}
        named = (n for name, n in given.items() if self._matches(pattern, name, module))
        number = next(named, self.options.get(usual, _USUAL))
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
            raise UsageError(f"{self.path}: {usual} is {number!r}, not a positive number", page="adapters")
        return float(number)

    def _matches(self, option: str, name: str, module: str) -> bool:
        return re.match(rf"(.*\.)?({self._expression(option, name)})$", module) is not None

    def _expression(self, option: str, text: str) -> str:
        """Return a regular expression that is quick on every name.

        Raises:
            UsageError: it is none, or one that a small file could keep a computer busy with for hours.
        """
        plain = re.sub(r"\[[^\]]*\]", "x", re.sub(r"\\.", "x", text))
        repeats = len(re.findall(r"[*+{]", plain))
        if len(text) <= 1000 and repeats <= 6 and not re.search(r"\)[*+{]", plain) and not re.search(r"\\\d", text):
            try:
                re.compile(text)
            except re.error:
                pass
            else:
                return text
        raise UsageError(
            f"{self.path}: {option} has the expression {_short(text)}, which is not read: write a list of names there",
            page="adapters",
        )


def read_config(folder: Path) -> PeftConfig:
    """Return the configuration of an adapter.

    Raises:
        UsageError: it is missing, no JSON, or asks for what a program's adapters do not compute.
    """
    path = folder / CONFIG
    try:
        options = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise UsageError(f"{folder} is no adapter of PEFT: {CONFIG}: {said}", page="adapters") from error
    if not isinstance(options, dict) or options.get("peft_type") != "LORA":
        raise UsageError(f"{path}: it is no LoRA, and no other adapter is read", page="adapters")
    for option, value in options.items():
        if option in _READ or option in _SAYS_NOTHING or value in (None, False, "none", [], {}):
            continue
        why = _REFUSED.get(option, "an option of another PEFT, which is not known here")
        raise UsageError(f"{path}: {option} is {_short(value)}: {why}. {_INSTEAD}", page="adapters")
    _check_beginning(path, options)
    _check_kinds(path, options)
    return PeftConfig(path, options)


def _check_beginning(path: Path, options: Mapping[str, Any]) -> None:
    """Raise where the adapter is of another base than the one that it names, or trains otherwise."""
    begins, task = options.get("init_lora_weights", True), options.get("task_type")
    if begins not in (None, *_BEGINNINGS):
        why = "only A of it trains" if begins == "mica" else "it is of a base that was changed before the training"
        convert = (
            ""
            if begins in ("mica", "loftq")
            else ", or save it by save_pretrained(path_initial_model_for_weight_conversion=...)"
        )
        raise UsageError(
            f"{path}: init_lora_weights is {_short(begins)}: {why}. {_INSTEAD}{convert}",
            page="adapters",
        )
    if task not in (None, "CAUSAL_LM"):
        raise UsageError(
            f"{path}: task_type is {_short(task)}: the adapter was trained below another head than that of a language "
            f"model. {_INSTEAD}",
            page="adapters",
        )


def _check_kinds(path: Path, options: Mapping[str, Any]) -> None:
    """Raise where an option that is read has a value of another kind than PEFT's."""

    def is_names(value: Any) -> bool:
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value))

    def is_layers(value: Any) -> bool:
        return all(type(one) is int for one in (value if isinstance(value, list) else [value]))

    def is_number(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1

    if not options.get("target_modules"):
        raise UsageError(
            f"{path}: target_modules is missing: name the layers whose factors the folder has", page="adapters"
        )
    kinds: Iterable[tuple[str, Any, str]] = (
        *((name, is_names, "names") for name in ("target_modules", "exclude_modules", "layers_pattern")),
        ("layers_to_transform", is_layers, "numbers of layers"),
        ("lora_dropout", is_number, "a number from 0 to below 1"),
        *((name, lambda value: isinstance(value, dict), "an object") for name in ("rank_pattern", "alpha_pattern")),
        *((name, lambda value: isinstance(value, bool), "true or false") for name in ("use_rslora", "use_dora")),
    )
    for name, fits, wanted in kinds:
        if (value := options.get(name)) is not None and not fits(value):
            raise UsageError(f"{path}: {name} is {_short(value)}, not {wanted}", page="adapters")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
