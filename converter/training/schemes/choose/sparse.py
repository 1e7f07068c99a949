"""PockEngine's choice: biases and few kernels of the last blocks."""

from __future__ import annotations

from converter.training.schemes.choose.layers import trained_blocks
from converter.training.schemes.heads import Granted, own_head, without_words
from converter.training.schemes.structure import Member

#: Blocks of a net with depthwise convolutions in which something trains, as of MobileNetV2's 17 and MCUNet's 14.
_MOST_INVERTED = 7
#: Layers of a transformer whose kernels train, as of LLaMA2's 32.
_MOST_LAYERS = 5


def sparse(everything: list[Member]) -> Granted:
    """PockEngine's schemes (arXiv 2310.17752, section 4): in the last blocks the biases and few kernels.

    The last blocks are the later half of those that have several kernels, of inverted bottlenecks at most 7. Of most
    the first kernel trains that is not depthwise, on the main path; of the layers of a transformer those of the
    attention and the first of the feed-forward part, and only in the last third, at most 5.
    """
    head = own_head(everything)
    kernels: dict[str, list[Member]] = {
        block: [] for block in trained_blocks([m for m in everything if m.name not in head])
    }
    for member in everything:
        if member.block in kernels and member.role == "kernel" and member.parameter.trainable:
            kernels[member.block].append(member)
    layers = [block for block, inside in kernels.items() if _attends(inside)]
    last_layers = layers[-_within(round(len(layers) / 3), _MOST_LAYERS) :]
    repeated = [block for block, inside in kernels.items() if len(inside) > 1] or list(kernels)
    inverted = any(m.depthwise for inside in kernels.values() for m in inside)
    later = repeated[-_within(len(repeated) // 2, _MOST_INVERTED if inverted else len(repeated)) :][:1]
    granted: dict[str, tuple[float, str]] = {}
    for block in list(kernels)[list(kernels).index(later[0]) :] if later else []:
        biases = [m for m in everything if m.block == block and m.role == "bias"]
        granted |= {m.name: (1.0, f"a bias of {block}, one of the last blocks") for m in biases}
        if block in last_layers:
            why = f"in the attention of {block}, or the next kernel, in the last third"
            granted |= {m.name: (1.0, why) for m in _attention_and_next(kernels[block])}
        elif block not in layers and (layers or block in repeated):
            why = f"first kernel of {block}, one of the last blocks"
            granted |= {m.name: (1.0, why) for m in _first(kernels[block])}
    return without_words(granted | head, everything)


def _within(count: int, most: int) -> int:
    return min(max(count, 1), most)


def _first(kernels: list[Member]) -> list[Member]:
    """Return the kernel that a block begins with: no depthwise one, and not that of a shortcut, which none follows."""
    full = [m for m in kernels if not m.depthwise] or kernels
    names = {m.name for m in kernels}
    return ([m for m in full if m.leads_to & names] or full)[:1]


def _attends(kernels: list[Member]) -> bool:
    """Do a block's kernels stand on both sides of scores and mix?"""
    return bool(kernels) and kernels[-1].products >= kernels[0].products + 2


def _attention_and_next(kernels: list[Member]) -> list[Member]:
    """Kernels of an attention (what comes before its mix, and its output), and the first one after it."""
    inside = sum(m.products < kernels[-1].products for m in kernels)
    return kernels[: inside + 2]
