"""Ways to shorten a memory without gates: the `Shortener` contract, its registry, and four of them.

A gate shortens a memory through `compress`, and that is what a model does by default. A `Shortener` takes the place of
both: one function from encodings to the `Memory` that the decoder attends to.

| shortener       | a row of the memory                                          | bias     |
|-----------------|--------------------------------------------------------------|----------|
| `mean_pool`     | the mean of neighbours; sizes differ by at most one          | log size |
| `merge`         | the mean of neighbours that were merged, most similar first  | log size |
| `top_norm`      | one of the encodings with the largest norm, unchanged        | 0        |
| `top_attention` | one of the encodings that receive most attention, unchanged  | 0        |

Each keeps n = max(1, round(keep · real tokens)) rows, as the dial does. A sentence's rows do not depend on its batch or
on padding. The choice of rows has no gradient; the rows have.

Shapes: B sentences, N source positions, K memory rows, D model width. Masks are True on real tokens.
"""

from collections.abc import Callable
from typing import ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from l0drop.core import hard_concrete
from l0drop.core.dial import largest, rows_to_keep
from l0drop.core.gates import Gates
from l0drop.core.memory import Memory, compress, pool
from l0drop.core.registry import Buildable, Registry
from l0drop.core.values import number


class Shortener(Buildable):
    """Base class of shorteners: subclass it and override `forward`.

    A saved model rebuilds its shortener from the constructor's arguments. They are recorded automatically and must be
    plain JSON values. A constructor that names `width` gets the model's.

    encodings: [B, N, D], differentiable.
    mask: [B, N], True on real tokens.
    attention: [B, N], the attention that each position receives in the encoder's last self-attention, averaged over
        heads and real queries. Only a shortener with `needs_attention` gets it, because the encoder does not keep it:
        the model computes it again for the last layer alone.

    `pool` and `compress` build memories. In other ones, every row has the source position of a real token (its first,
    if it stands for several) in `index`, in source order, and `count` is the number of real tokens less that of rows.
    So the sparsity is 1 - rows / real tokens.
    """

    arguments_field = "shortener_args"
    needs_attention: ClassVar[bool] = False

    def forward(self, encodings: Tensor, mask: Tensor, attention: Tensor | None = None) -> Memory:
        raise NotImplementedError(f"{type(self).__name__} must override forward and return a Memory")


SHORTENERS = Registry[Shortener]("shortener", {})
"""The shorteners that saved models find by name."""

ShortenerClass = TypeVar("ShortenerClass", bound=type[Shortener])


def register_shortener(name: str) -> Callable[[ShortenerClass], ShortenerClass]:
    """Class decorator: the name under which a saved model finds its shortener, once the module is imported."""

    def register(shortener_class: ShortenerClass) -> ShortenerClass:
        SHORTENERS.add(name, shortener_class)
        return shortener_class

    return register


class _ByShare(Shortener):
    """Keeps a share of the rows: n = max(1, round(keep · real tokens))."""

    def __init__(self, keep: float = 0.5) -> None:
        super().__init__()
        self.keep = number("keep", keep)
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep: expected a share in (0, 1], got {keep}")


@register_shortener("mean_pool")
class MeanPool(_ByShare):
    """Means of neighbours, in groups that are spread evenly over the sentence."""

    def forward(self, encodings: Tensor, mask: Tensor, attention: Tensor | None = None) -> Memory:
        position_BN = mask.cumsum(1) - 1  # counted in real tokens
        rows_B1, real_B1 = rows_to_keep(self.keep, mask)[:, None], mask.sum(1, keepdim=True)
        return pool(encodings, position_BN * rows_B1 // real_B1.clamp_min(1), mask)


@register_shortener("merge")
class Merge(_ByShare):
    """Means of neighbours: the two rows next to each other with the highest cosine similarity are merged, repeatedly.

    A row is the mean of all its encodings. Ties are merged from the start of the sentence.
    """

    def forward(self, encodings: Tensor, mask: Tensor, attention: Tensor | None = None) -> Memory:
        return pool(encodings, merged_rows(encodings, mask, rows_to_keep(self.keep, mask)), mask)


class _ByScore(_ByShare):
    """Keeps the encodings with the largest scores unchanged, ties by position."""

    def forward(self, encodings: Tensor, mask: Tensor, attention: Tensor | None = None) -> Memory:
        kept_BN = largest(self.score(encodings, attention), self.keep, mask)
        return compress(encodings, Gates(kept_BN.to(hard_concrete.wide(encodings).dtype)), mask, "mask")

    def score(self, encodings: Tensor, attention: Tensor | None) -> Tensor:
        """[B, N]; encodings with the largest scores stay."""
        raise NotImplementedError


@register_shortener("top_norm")
class TopNorm(_ByScore):
    """The encodings with the largest Euclidean norm."""

    def score(self, encodings: Tensor, attention: Tensor | None) -> Tensor:
        return hard_concrete.wide(encodings.detach()).norm(dim=-1)


@register_shortener("top_attention")
class TopAttention(_ByScore):
    """The encodings at the positions that receive most attention in the encoder's last self-attention."""

    needs_attention = True

    def score(self, encodings: Tensor, attention: Tensor | None) -> Tensor:
        if attention is None:
            raise ValueError("attention: top_attention needs the attention that each position receives, [B, N]")
        return attention


@torch.no_grad()
def merged_rows(encodings: Tensor, mask: Tensor, rows_B: Tensor) -> Tensor:
    """[B, N], the row that each real token belongs to, once neighbours are merged into `rows_B` rows.

    A row stands at the index of its first token. `after` and `before` link it to its neighbours, so a merge changes two
    similarities and costs the same at any length. The cosine of two means is that of the sums.
    """
    B, N = mask.shape
    real_B = mask.sum(1)
    order_BN = (~mask).int().argsort(dim=1, stable=True)  # real tokens first, in order
    sum_BND = hard_concrete.wide(encodings).gather(1, order_BN[..., None].expand_as(encodings))
    index_N = torch.arange(N + 1, device=mask.device)
    begins_BN = (index_N[:N] < real_B[:, None]).clone()
    # column N is the end of every sentence, and -1, the same column, is the start
    after_BN, before_BN = (index_N + 1).repeat(B, 1), (index_N - 1).repeat(B, 1)
    similar_BN = sum_BND.new_full((B, N + 1), -torch.inf)
    has_next_BN = index_N[1:N] < real_B[:, None]
    similar_BN[:, : N - 1] = torch.where(has_next_BN, _cosine(sum_BND[:, :-1], sum_BND[:, 1:]), -torch.inf)
    merges_B, by_merges_B = (real_B - rows_B).sort(descending=True)
    for active in _active(merges_B.tolist()):
        b = by_merges_B[:active]
        left = similar_BN[b].argmax(1)  # the first of equal ones
        right = after_BN[b, left]
        after, before = after_BN[b, right], before_BN[b, left]
        sum_BND[b, left] += sum_BND[b, right]
        begins_BN[b, right] = False
        after_BN[b, left], before_BN[b, after] = after, left
        similar_BN[b, right] = -torch.inf
        for first, second, exists in ((left, after, after < real_B[b]), (before, left, before >= 0)):
            cosine = _cosine(sum_BND[b, first], sum_BND[b, second.clamp_max(N - 1)])
            similar_BN[b, first] = torch.where(exists, cosine, -torch.inf)
    row_BN = begins_BN.cumsum(1) - 1
    return row_BN.gather(1, (mask.cumsum(1) - 1).clamp_min(0))


def _active(merges: list[int]) -> list[int]:
    """For each step, the number of sentences that still merge rows; `merges` is sorted, the most first."""
    return [sum(merge > step for merge in merges) for step in range(merges[0])]


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    # NaN, of damaged weights, would hide which rows have a neighbour; the engine reports them later
    return F.cosine_similarity(one, other, dim=-1).nan_to_num(0)
