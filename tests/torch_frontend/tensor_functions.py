"""Functions of whole tensors, as people write them in PyTorch, each with the shapes of the weights that it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A function of weights of given shapes."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[Shape, ...]


def _cases(shapes: Shape | tuple[Shape, ...], **functions: Callable[..., Any]) -> list[Case]:
    several = shapes if isinstance(shapes[0], tuple) else (shapes,)
    return [Case(name, function, several) for name, function in functions.items()]


_AT = torch.tensor([2, 0, 1, 2])
_SHUFFLED = torch.tensor([[[1, 0, 2, 2]], [[0, 2, 1, 0]]])
_MASK = torch.tensor([True, False, True, True])


def _into(base: float, write: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """A tensor of one number into which parts of a weight are written."""

    def function(w: Any) -> Any:
        y = torch.full((2, 3, 4), base, dtype=w.dtype)
        write(y, w)
        return y * 2

    return function


def _set(place: Any, part: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return _into(0.5, lambda y, w: y.__setitem__(place, part(w)))


#: By what they do; a group is one module and one build.
GROUPS: dict[str, list[Case]] = {
    "movements": _cases(
        (2, 3, 4),
        permute=lambda w: w.permute(2, 0, 1),
        movedim=lambda w: torch.movedim(w, 0, 2),
        swapaxes=lambda w: w.swapaxes(1, 2),
        mT=lambda w: w.mT,
        reshape=lambda w: w.reshape(4, 6),
        view_as_one=lambda w: w.view(-1),
        flatten=lambda w: w.flatten(1),
        unflatten=lambda w: w.unflatten(2, (2, 2)),
        unsqueeze_squeeze=lambda w: w.unsqueeze(1).squeeze(1),
        roll=lambda w: torch.roll(w, (1, -2), (1, 2)),
        roll_flat=lambda w: torch.roll(w, 5),
        flip=lambda w: w.flip(0, 2),
        fliplr=torch.fliplr,
        rot90=lambda w: torch.rot90(w, 1, (1, 2)),
        narrow=lambda w: w.narrow(2, 1, 2),
        sliced=lambda w: w[:, 1:, ::2],
        ellipsis=lambda w: w[..., -1],
        none=lambda w: w[:, None, 1],
        select=lambda w: w.select(1, 2),
        chunk=lambda w: w.chunk(2, 2)[1],
        split=lambda w: w.split([1, 3], 2)[1],
        tensor_split=lambda w: torch.tensor_split(w, 3, 2)[0],
        unbind=lambda w: w.unbind(1)[2],
        cat=lambda w: torch.cat([w, w * 2], 1),
        stack=lambda w: torch.stack([w, -w], 2),
        hstack=lambda w: torch.hstack([w, w]),
        vstack=lambda w: torch.vstack([w, w]),
        dstack=lambda w: torch.dstack([w, w]),
        expand=lambda w: w[:, :1].expand(2, 5, 4),
        repeat=lambda w: w.repeat(1, 2, 1),
        tile=lambda w: torch.tile(w, (2, 1)),
        repeat_interleave=lambda w: w.repeat_interleave(2, 1),
        tril=lambda w: w.tril(),
        triu=lambda w: w.triu(1),
        diagonal=lambda w: w.diagonal(0, 1, 2),
        diff=lambda w: w.diff(dim=2),
        unfold=lambda w: w.unfold(2, 2, 1),
        broadcast=lambda w: torch.broadcast_to(w.sum(1, keepdim=True), (2, 3, 4)),
        blocks=lambda w: w.reshape(2, 3, 2, 2).transpose(2, 3).flatten(2),
        clone=lambda w: w.clone().contiguous(),
    ),
    "reductions": _cases(
        (2, 3, 4),
        sum=lambda w: w.sum(),
        sum_of=lambda w: w.sum((0, 2)),
        mean=lambda w: w.mean(1),
        mean_kept=lambda w: w - w.mean(-1, keepdim=True),
        var=lambda w: w.var(2),
        var_of_all=lambda w: w.var(unbiased=False),
        std=lambda w: w.std((1, 2), correction=0),
        var_mean=lambda w: torch.var_mean(w, 1)[0],
        prod=lambda w: w.prod(2),
        amax=lambda w: w.amax(1),
        amin=lambda w: w.amin((1, 2)),
        max_of=lambda w: w.max(2)[0],
        min_of=lambda w: w.min(1).values,
        norm=lambda w: w.norm(dim=2),
        norm_one=lambda w: torch.linalg.vector_norm(w, 1, 2),
        norm_three=lambda w: torch.linalg.vector_norm(w, 3, 1),
        logsumexp=lambda w: w.logsumexp(1),
        cumsum=lambda w: w.cumsum(2),
        cumsum_first=lambda w: w.cumsum(0),
        softmax=lambda w: w.softmax(1),
        log_softmax=lambda w: w.log_softmax(-1),
        softmin=lambda w: functional.softmin(w, 2),
        normalize=lambda w: functional.normalize(w, dim=1),
        glu=lambda w: functional.glu(w, 2),
        topk=lambda w: w.topk(2, 2)[0],
        layer_norm=lambda w: functional.layer_norm(w, (3, 4)),
        group_norm=lambda w: functional.group_norm(w.transpose(1, 2), 2),
        instance_norm=lambda w: functional.instance_norm(w),
        rms_norm=lambda w: functional.rms_norm(w, (4,)),
        local_response=lambda w: functional.local_response_norm(w, 3),
    ),
    "choices": _cases(
        (2, 3, 4),
        index_select=lambda w: w.index_select(1, _AT),
        indexed=lambda w: w[:, _AT],
        indexed_two=lambda w: w[torch.tensor([0, 1, 1]), torch.tensor([2, 0, 1])],
        gather=lambda w: w.gather(1, _SHUFFLED),
        take_along=lambda w: torch.take_along_dim(w, _SHUFFLED, 1),
        masked_fill=lambda w: w.masked_fill(_MASK, 0.5),
        where=lambda w: torch.where(w > 0, w * 2, w.exp()),
        clamp=lambda w: w.clamp(-0.5, 0.8),
        clamp_by_tensor=lambda w: torch.clamp(w, max=torch.tensor([0.1, 0.4, -0.2, 2.0])),
        maximum=lambda w: torch.maximum(w, w.flip(2)),
        threshold=lambda w: functional.threshold(w, 0.1, -3.0),
        lerp=lambda w: torch.lerp(w, w * w, 0.3),
        addcmul=lambda w: torch.addcmul(w, w, w, value=0.5),
        addcdiv=lambda w: torch.addcdiv(w, w, 2 + w * w, value=2.0),
        one_hot_product=lambda w: functional.one_hot(_AT, 4).to(w) @ w.transpose(1, 2),
        index_add=lambda w: w.index_add(1, torch.tensor([0, 2]), w[:, :2]),
        scatter_add=lambda w: w.scatter_add(1, _SHUFFLED, w[:, :1] * 3),
        hypot=lambda w: torch.hypot(w, w.flip(0)),
        atan2=lambda w: torch.atan2(w, 1.5 + w.flip(0)),
        remainder=lambda w: torch.remainder(w, 0.7),
        pow_of=lambda w: w.abs().add(0.5).pow(w),
        xlogy=lambda w: torch.xlogy(w, w.abs() + 0.5),
        logaddexp=lambda w: torch.logaddexp(w, w.flip(1)),
        nan_to_num=lambda w: torch.nan_to_num(w) * w,
        rsub=lambda w: torch.rsub(w, 3.0, alpha=2.0),
        prelu=lambda w: functional.prelu(w, w[0, :, 0]),
    ),
    "constants": _cases(
        (2, 3, 4),
        every_second=_set((..., slice(None, None, 2)), lambda w: w[..., :2]),
        every_second_of_two=_set((slice(None, None, 2), slice(1, None, 2)), lambda w: w[:1, 1:2]),
        one_place=_set((slice(None), 1), lambda w: w[:, 0]),
        from_the_end=_set((slice(None), -1, slice(1, 3)), lambda w: w[:, 0, :2]),
        places=_set((slice(None), torch.tensor([2, 0])), lambda w: w[:, :2]),
        masked_places=_set((..., _MASK), lambda w: w[..., :3]),
        flat_view=_into(0.0, lambda y, w: y.view(-1)[::3].copy_(w.reshape(-1)[:8])),
        transposed_view=_into(1.0, lambda y, w: y.transpose(0, 2)[1].mul_(0).add_(w[:, :, 0].t())),
        added=_into(1.0, lambda y, w: y[..., 1].add_(w[..., 0])),
        index_put=_into(1.0, lambda y, w: y.index_put_((_AT[:2] % 2, _AT[:2]), w[:, 0], accumulate=True)),
        index_copied=_into(1.0, lambda y, w: y.index_copy_(1, _AT[:2], w[:, :2])),
        scattered=_into(1.0, lambda y, w: y.scatter_(1, _SHUFFLED[:, :, :3], w[:, :1, 1:])),
        chosen_by_mask=lambda w: w[..., _MASK].flatten(1).view(2, -1) * 2,
        changed_by_mask=lambda w: (v := w * 1, v.__setitem__((..., _MASK), v[..., _MASK] * 2))[0],
        chosen_where=lambda w: w[:, :, torch.where(~_MASK)[0]].view(-1),
        chosen_nonzero=lambda w: w[..., _MASK.nonzero().squeeze(1)] + 1,
        mask_selected=lambda w: torch.masked_select(w, _MASK).view(2, 9).cumsum(1),
    ),
    "batched_products": _cases(
        ((2, 3, 4), (2, 4, 5)),
        bmm=torch.bmm,
        matmul=torch.matmul,
        einsum=lambda a, b: torch.einsum("bij,bjk->bk", a, b),
        einsum_outer=lambda a, b: torch.einsum("bij,bkl->bil", a, b),
        baddbmm=lambda a, b: torch.baddbmm(a.sum((1, 2), keepdim=True), a, b, beta=0.5, alpha=2.0),
        tensordot=lambda a, b: torch.tensordot(a, b, ([2], [1])),
    ),
    "products": _cases(
        ((3, 4), (5, 4), (5,)),
        linear=functional.linear,
        addmm=lambda a, b, c: torch.addmm(c, a, b.T, beta=2.0, alpha=0.5),
        mv=lambda a, b, c: a.T @ (b @ a.T).T[:, 0].sum().expand(3) + c.sum(),
        distances=lambda a, b, c: (a[:, None] - b[None]).square().sum(-1) + c,
        cosine=lambda a, b, c: functional.cosine_similarity(a[:, None], b[None], dim=-1) + c,
        bilinear=lambda a, b, c: functional.bilinear(a, a, b[:, :, None] * b[:, None], c),
        outer=lambda a, b, c: torch.outer(a[:, 0], c) + b[:3, :1],
    ),
    "convolutions": _cases(
        ((1, 4, 6, 5), (4, 2, 3, 3), (4,)),
        conv_groups=lambda x, w, b: functional.conv2d(x, w, b, groups=2),
        conv_stride=lambda x, w, b: functional.conv2d(x, w, b, stride=2, padding=1, groups=2),
        conv_dilated=lambda x, w, b: functional.conv2d(x, w, b, padding=2, dilation=2, groups=2),
        conv_uneven=lambda x, w, b: functional.conv2d(x, w, b, stride=(2, 1), padding=(0, 1), groups=2),
        conv_same=lambda x, w, b: functional.conv2d(x, w, b, padding="same", groups=2),
        conv_transposed=lambda x, w, b: functional.conv_transpose2d(x, w, b[:2], stride=2),
        conv_transposed_padded=lambda x, w, b: functional.conv_transpose2d(
            x, w, b[:2], stride=2, padding=1, output_padding=1
        ),
        conv_transposed_dilated=lambda x, w, b: functional.conv_transpose2d(x, w, b[:2], dilation=2),
        conv_one=lambda x, w, b: functional.conv1d(x[:, :, :, 0], w[:, :, :, 0], b, padding=1, groups=2),
        conv_one_transposed=lambda x, w, b: functional.conv_transpose1d(x[:, :, 0], w[:, :, 0], b[:2], stride=2),
    ),
    "pictures": _cases(
        (1, 2, 6, 5),
        max_pool=lambda w: functional.max_pool2d(w, 2),
        max_pool_padded=lambda w: functional.max_pool2d(w, 3, 2, 1),
        max_pool_ceil=lambda w: functional.max_pool2d(w, 2, ceil_mode=True),
        max_pool_dilated=lambda w: functional.max_pool2d(w, 2, 1, dilation=2),
        avg_pool=lambda w: functional.avg_pool2d(w, 2),
        avg_pool_padded=lambda w: functional.avg_pool2d(w, 3, 2, 1),
        avg_pool_not_counted=lambda w: functional.avg_pool2d(w, 3, 2, 1, count_include_pad=False),
        avg_pool_ceil=lambda w: functional.avg_pool2d(w, 2, ceil_mode=True),
        avg_pool_divisor=lambda w: functional.avg_pool2d(w, 2, divisor_override=3),
        lp_pool=lambda w: functional.lp_pool2d(w.abs() + 0.1, 2.0, 2),
        adaptive_avg=lambda w: functional.adaptive_avg_pool2d(w, (2, 3)),
        adaptive_max=lambda w: functional.adaptive_max_pool2d(w, (3, 2)),
        pad=lambda w: functional.pad(w, (1, 2, 0, 1), value=0.3),
        pad_cut=lambda w: functional.pad(w, (-1, 1)),
        pad_reflect=lambda w: functional.pad(w, (2, 1, 1, 3), mode="reflect"),
        pad_replicate=lambda w: functional.pad(w, (2, 1, 1, 3), mode="replicate"),
        pad_circular=lambda w: functional.pad(w, (2, 1, 1, 3), mode="circular"),
        nearest=lambda w: functional.interpolate(w, scale_factor=2.0),
        nearest_size=lambda w: functional.interpolate(w, size=(4, 9)),
        nearest_exact=lambda w: functional.interpolate(w, size=(4, 9), mode="nearest-exact"),
        bilinear_size=lambda w: functional.interpolate(w, size=(9, 8), mode="bilinear"),
        bilinear_corners=lambda w: functional.interpolate(w, size=(9, 8), mode="bilinear", align_corners=True),
        bilinear_down=lambda w: functional.interpolate(w, size=(3, 3), mode="bilinear"),
        pixel_shuffle=lambda w: functional.pixel_shuffle(w.flatten(1)[:, :48].reshape(1, 8, 3, 2), 2),
        pixel_unshuffle=lambda w: functional.pixel_unshuffle(w[:, :, :, :4], 2),
        channel_shuffle=lambda w: functional.channel_shuffle(torch.cat([w, w * 2], 1), 2),
        im2col=lambda w: functional.unfold(w, (2, 3), padding=1, stride=2),
    ),
    "attention": _cases(
        ((2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 6)),
        attention=functional.scaled_dot_product_attention,
        attention_scaled=lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, scale=0.2),
        attention_masked=lambda q, k, v: functional.scaled_dot_product_attention(
            q, k, v, attn_mask=torch.ones(4, 5).tril().bool()
        ),
        attention_biased=lambda q, k, v: functional.scaled_dot_product_attention(
            q, k, v, attn_mask=torch.arange(20.0).reshape(4, 5) / 10
        ),
        attention_causal=lambda q, k, v: functional.scaled_dot_product_attention(
            q, k[:, :, :4], v[:, :, :4], is_causal=True
        ),
        attention_grouped=lambda q, k, v: functional.scaled_dot_product_attention(
            q, k[:, :1], v[:, :1], enable_gqa=True
        ),
    ),
    "embeddings": _cases(
        (7, 3),
        embedding=lambda w: functional.embedding(torch.tensor([[0, 6, 3], [3, 3, 1]]), w),
        embedding_padded=lambda w: functional.embedding(torch.tensor([[0, 6, 3], [3, 3, 1]]), w, padding_idx=3),
        embedding_bag=lambda w: functional.embedding_bag(torch.tensor([[0, 6], [3, 3]]), w, mode="sum"),
        embedding_bag_mean=lambda w: functional.embedding_bag(torch.tensor([[0, 6], [3, 3]]), w),
    ),
}
