"""Choices of adapters: of every layer that has one, or of those of a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from converter.support.errors import UsageError, nearest
from converter.training.schemes.channels import Channels, problem
from converter.training.schemes.heads import Granted, own_head, scores_words, whole_head, without_adapter, without_words
from converter.training.schemes.lora import Contraction, LoRA
from converter.training.schemes.skip import SkipLoRA
from converter.training.schemes.structure import Member


def low_rank(adapter: LoRA) -> Callable[[list[Member]], Granted]:
    """Return what chooses such an adapter for every kernel of twice its numbers, with the head."""

    def choose(everything: list[Member]) -> Granted:
        head = own_head(everything)
        kernels = [m for m in everything if m.role == "kernel" and not scores_words(m, everything)]
        without = without_adapter(kernels, adapter)
        ranks = {m.name: m.place.largest_rank // 2 for m in kernels if isinstance(m.place, Contraction)}
        granted: Granted = {name: (adapter, f"{adapter}") for name in ranks if name not in without}
        if not granted.keys() - head.keys():
            largest = max((most for name, most in ranks.items() if name not in head), default=0)
            named = f"{'dora' if adapter.dora else 'lora'}-{largest}"
            instead = f"the largest rank here is {largest}, {named}" if largest else "choose 'head'"
            raise UsageError(
                f"no weight outside of the head has twice the numbers of an adapter of rank {adapter.rank}: {instead}, "
                "or rules of your own",
                page="update-rules",
            )
        return without_words({**without, **granted, **head}, everything)

    return choose


def low_rank_of(adapter: LoRA, targets: Sequence[str]) -> Callable[[list[Member]], Granted]:
    """Return what PEFT's `target_modules` chooses: adapters alone, of layers whose names end so.

    `all-linear` is every dense layer but the last, which gives the logits.
    """

    def choose(everything: list[Member]) -> Granted:
        all_kernels = [m for m in everything if m.role == "kernel"]
        kernels = [m for m in all_kernels if isinstance(m.place, Contraction)]
        layers = {m.name: m.name.removesuffix(".weight").removesuffix("/kernel").replace("/", ".") for m in kernels}
        granted: dict[str, tuple[float | LoRA, str]] = {}
        for target in targets:
            if target == "all-linear":
                head = whole_head(everything)
                kept = without_adapter([m for m in all_kernels if m.name not in head], adapter, any_rank=True)
                granted |= kept
                matched = [name for name in layers if name not in head and name not in kept]
            else:
                matched = [name for name, layer in layers.items() if f".{layer}".endswith(f".{target}")]
            if not matched:
                last = [layer.rpartition(".")[2] for layer in layers.values()]
                raise UsageError(
                    f"no layer with an adapter is called {target!r}.{nearest(target, last)} There are "
                    f"{', '.join(dict.fromkeys(last))}, and all-linear.",
                    page="update-rules",
                )
            granted |= dict.fromkeys(matched, (adapter, f"{adapter}, by the name {target}"))
        return granted

    return choose


def of_channels(part: Channels) -> Callable[[list[Member]], Granted]:
    """Return what chooses some input channels of every kernel that has such, with the head."""

    def choose(everything: list[Member]) -> Granted:
        head = own_head(everything)
        granted: Granted = {
            m.name: (part, f"{part}")
            for m in everything
            if m.role == "kernel"
            and isinstance(m.place, Contraction)
            and problem(m.place) is None
            and m.name not in head
            and not scores_words(m, everything)
        }
        if not granted:
            raise UsageError(
                "no weight outside of the head has input channels that can be chosen: use other rules",
                page="update-rules",
            )
        return without_words({**granted, **head}, everything)

    return choose


def before_head(everything: list[Member]) -> tuple[Member | None, dict[str, list[Member]]]:
    """Return the head's kernel, and the kernels of each block before it.

    Blocks are those with several kernels, and where no block has, the layers with a kernel.
    """
    kernels = [m for m in everything if m.role == "kernel"]
    head = max(kernels, key=lambda m: m.last_use, default=None)
    blocks: dict[str, list[Member]] = {}
    for member in kernels:
        if member is not head:
            blocks.setdefault(member.block, []).append(member)
    return head, {block: inside for block, inside in blocks.items() if len(inside) > 1} or blocks


def skips(adapter: SkipLoRA, last: int | None) -> Callable[[list[Member]], Granted]:
    """Return what chooses ways to the logits from the inputs of blocks and of the head, and nothing else.

    Of all blocks, or the last ones. Raises UsageError where there is none before the head.
    """

    def choose(everything: list[Member]) -> Granted:
        head, blocks = before_head(everything)
        first = {
            block: next((m for m in inside if m.depthwise or isinstance(m.place, Contraction)), None)
            for block, inside in blocks.items()
        }
        found = [(block, m) for block, m in first.items() if m is not None]
        if head is None or not found:
            raise UsageError(
                "skip-lora leads from the inputs of blocks to the logits, and no block or layer that multiplies by a "
                "weight outside of a loop stands before the head of this model: choose 'head'",
                page="update-rules",
            )
        chosen = found if last is None else found[-last:]
        return {
            **{m.name: (adapter, f"{adapter}, first kernel of {block}") for block, m in chosen},
            head.name: (adapter, f"{adapter}, the head"),
        }

    return choose
