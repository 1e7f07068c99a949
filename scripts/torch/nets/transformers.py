"""Architectures of transformers, small: classifiers of text, images and sound, and language models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers as hf

from scripts.torch.nets.tasks import CLASSES, Made, image_task, language_task, task_of, token_task

_WORDS, _PLACES = 40, 8
#: How the sizes of most configurations are called.
_SMALL: dict[str, Any] = {
    "initializer_range": 0.1,
    "vocab_size": _WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "num_labels": CLASSES,
    "pad_token_id": 0,
}


class Logits(torch.nn.Module):
    """A net by its logits alone, for losses that want the classes behind the rows."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Any) -> Any:
        logits = self.net(x).logits
        return logits.transpose(1, 2) if logits.dim() == 3 else logits


def _text(name: str, **options: Any) -> Made:
    config = getattr(hf, f"{name}Config")(**{**_SMALL, **options})
    return Logits(getattr(hf, f"{name}ForSequenceClassification")(config)), token_task(_PLACES, _WORDS)


def _language(name: str, kind: str = "ForCausalLM", **options: Any) -> Made:
    config = getattr(hf, f"{name}Config")(**{**_SMALL, "use_cache": False, **options})
    net = getattr(hf, f"{name}{kind}")(config)
    return Logits(net), language_task(_PLACES, _WORDS)


def _image(name: str, size: int = 32, **options: Any) -> Made:
    config = getattr(hf, f"{name}Config")(**{**_SMALL, "image_size": size, "patch_size": 8, **options})
    return Logits(getattr(hf, f"{name}ForImageClassification")(config)), image_task(size)


def _sound(name: str, kind: str, shape: tuple[int, ...], **options: Any) -> Made:
    config = getattr(hf, f"{name}Config")(**{**_SMALL, **options})
    return Logits(getattr(hf, f"{name}For{kind}")(config)), task_of(shape)


_WAVES: dict[str, Any] = {
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 16,
}
NETS: dict[str, Callable[[], Made]] = {
    "bert": partial(_text, "Bert"),
    "roberta": partial(_text, "Roberta"),
    "distilbert": partial(_text, "DistilBert", dim=32, hidden_dim=48, n_layers=2, n_heads=4),
    "albert": partial(_text, "Albert", embedding_size=16),
    "electra": partial(_text, "Electra", embedding_size=16),
    "mpnet": partial(_text, "MPNet"),
    "deberta": partial(_text, "DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "mobilebert": partial(_text, "MobileBert", embedding_size=16, intra_bottleneck_size=16),
    "modernbert": partial(_text, "ModernBert", global_attn_every_n_layers=2, local_attention=4),
    "squeezebert": partial(_text, "SqueezeBert", embedding_size=32),
    "gpt2": partial(_language, "GPT2", "LMHeadModel", n_embd=32, n_layer=2, n_head=4, n_positions=32),
    "gpt_neox": partial(_language, "GPTNeoX"),
    "opt": partial(_language, "OPT", ffn_dim=48, word_embed_proj_dim=32),
    "bloom": partial(_language, "Bloom", n_layer=2, n_head=4),
    "llama": partial(_language, "Llama", num_key_value_heads=2),
    "mistral": partial(_language, "Mistral", num_key_value_heads=2, sliding_window=4),
    "qwen2": partial(_language, "Qwen2", num_key_value_heads=2),
    "qwen3": partial(_language, "Qwen3", num_key_value_heads=2, head_dim=8, tie_word_embeddings=True),
    "gemma": partial(_language, "Gemma", num_key_value_heads=1, head_dim=8),
    "gemma2": partial(_language, "Gemma2", num_key_value_heads=1, head_dim=8, sliding_window=4),
    "phi": partial(_language, "Phi"),
    "smollm3": partial(_language, "SmolLM3", num_key_value_heads=2),
    "mamba": partial(_language, "Mamba", state_size=4),
    "vit": partial(_image, "ViT"),
    "beit": partial(_image, "Beit"),
    "dinov2": partial(_image, "Dinov2"),
    "swin": partial(
        _image, "Swin", patch_size=4, embed_dim=16, depths=[1, 1], num_attention_heads=[2, 2], window_size=4
    ),
    "segformer": partial(
        _image, "Segformer", hidden_sizes=[8, 16, 16, 32], num_attention_heads=[1, 2, 2, 4], depths=[1, 1, 1, 1]
    ),
    "resnet": partial(_image, "ResNet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    "mobilevit": partial(_image, "MobileViT", 64, patch_size=2, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8] * 7),
    "convnext": partial(
        _image, "ConvNext", patch_size=4, num_hidden_layers=4, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1]
    ),
    "wav2vec2": partial(_sound, "Wav2Vec2", "SequenceClassification", (400,), **_WAVES),
    "hubert": partial(_sound, "Hubert", "SequenceClassification", (400,), **_WAVES),
    "ast": partial(_sound, "AST", "AudioClassification", (64, 32), num_mel_bins=32, max_length=64),
    "whisper": partial(
        _sound,
        "Whisper",
        "AudioClassification",
        (8, 32),
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=48,
        num_mel_bins=8,
        max_source_positions=16,
        classifier_proj_size=16,
    ),
}
