"""Folders of `transformers`: `config.json` and weights in safetensors, of which rows are read as they are asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from converter.frontends.decoder.config_json import configuration_of
from converter.frontends.decoder.configuration import Configuration
from converter.frontends.decoder.names import Opened, checked, shapes_of
from converter.frontends.decoder.stored import StoredTensor, plus_one
from converter.support.errors import UsageError
from converter.support.extras import require
from converter.support.files import check_fetched, check_regular
from converter.support.notes import Note
from converter.support.strict_json import parse_json

CONFIG = "config.json"
_FLOATS = ("F32", "F16", "BF16")
_HEAD, _TABLE = "lm_head.weight", "model.embed_tokens.weight"
#: Rows of these that are compared at once.
_ROWS = 4096
#: Parts of a model of texts and images that read these.
_IMAGES = ("vision_tower.", "multi_modal_projector.")


def open_folder(path: Path) -> Opened:
    """Return the decoder of a folder; of its weights nothing is read yet.

    One with `config.json` alone can be planned, and not built.

    Raises:
        UsageError: a file is missing or damaged, or the model is none that is computed.
    """
    require("safetensors", "a folder of safetensors")
    try:
        config = parse_json((path / CONFIG).read_bytes())
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {path / CONFIG}: {said}", page="language-models") from error
    c, dropouts = configuration_of(config, path / CONFIG)
    found = _tensors(path)
    tensors, left = _of_text(found) if config["model_type"] == "gemma3" else (found, ())
    c = _with_head(c, tensors)
    tensors = tensors or _without_weights(path, c)
    if c.architecture.one_more:
        norms = [name for name in tensors if name.endswith(("norm.weight", "layernorm.weight"))]
        tensors |= {name: plus_one(tensors[name]) for name in norms}
    notes = [
        Note(
            key,
            "left out",
            f"a step computes without the {share:g} of {CONFIG}; LoRA has a dropout of its own",
        )
        for key, share in dropouts.items()
    ]
    notes += [Note(name, "left out", "the text part alone is read, without images") for name in left]
    return Opened(c, checked(path, c, tensors), tuple(notes))


def _with_head(c: Configuration, tensors: dict[str, StoredTensor]) -> Configuration:
    """Return the configuration with the head that a checkpoint has; what is tied stays among the tensors once.

    As in `transformers`, a head with other numbers than the table of embeddings is one of its own, whatever the
    configuration says, and a table that is missing is the head.
    """
    if not c.tied or (head := tensors.get(_HEAD)) is None:
        return c
    table = tensors.setdefault(_TABLE, head)
    if table.shape == head.shape and all(
        np.array_equal(table.rows(start, stop), head.rows(start, stop))
        for start in range(0, head.shape[0], _ROWS)
        for stop in (min(start + _ROWS, head.shape[0]),)
    ):
        del tensors[_HEAD]
        return c
    return replace(c, tied=False)


def _of_text(found: dict[str, StoredTensor]) -> tuple[dict[str, StoredTensor], tuple[str, ...]]:
    """Return the tensors of the text part of a model of texts and images, and the parts that are left out."""
    tensors, left = {}, set()
    for name, tensor in found.items():
        bare = name.removeprefix("model.")
        if bare.startswith(_IMAGES):
            left.add(bare.partition(".")[0])
        elif bare.startswith("language_model."):
            bare = bare.removeprefix("language_model.")
            tensors[bare if bare.startswith(("model.", "lm_head.")) else f"model.{bare}"] = tensor
        else:
            tensors[name] = tensor
    return tensors, tuple(sorted(left))


def _tensors(path: Path) -> dict[str, StoredTensor]:
    """Return the weights of all files of a folder by name; none where it has no such file."""
    from safetensors import SafetensorError, safe_open

    files = sorted(path.glob("*.safetensors"))
    found: dict[str, StoredTensor] = {}
    for each in files:
        check_regular(each)
        check_fetched(each)
        try:
            opened = safe_open(each, "numpy").__enter__()
            for name in opened.keys():  # noqa: SIM118 (it is no dictionary)
                if name.endswith("rotary_emb.inv_freq"):  # which older files hold, and the configuration tells
                    continue
                part = opened.get_slice(name)
                if part.get_dtype() not in _FLOATS:
                    raise UsageError(
                        f"{each}: the tensor {name} is stored as {part.get_dtype()}; {', '.join(_FLOATS)} are read",
                        page="language-models",
                    )
                if name in found:
                    raise UsageError(f"{path}: two files hold the tensor {name}", page="language-models")
                found[name] = StoredTensor(name, tuple(part.get_shape()), part.get_dtype(), _reader(part))
        except (OSError, SafetensorError, ValueError) as error:
            raise UsageError(
                f"{each} is damaged: {error}. Copy or download it again", page="language-models"
            ) from error
    return found


def _without_weights(path: Path, c: Configuration) -> dict[str, StoredTensor]:
    """Return weights that have shapes and no numbers, which is enough for a plan."""

    def read(start: int, stop: int) -> np.ndarray:
        raise UsageError(
            f"{path} has no weights: there is no .safetensors in it. `pocketune schemes` and `estimate` plan it so; to "
            "build it copy its weights there",
            page="language-models",
        )

    return {name: StoredTensor(name, shape, "F32", read) for name, shape in shapes_of(c).items()}


def _reader(part: Any) -> Any:
    return lambda start, stop: np.asarray(part[start:stop], np.float32)
