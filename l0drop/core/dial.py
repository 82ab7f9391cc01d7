"""The dial: keep more or fewer encodings than the model chose by itself, without training.

Shapes: B sentences, N source positions. Masks are True on real tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from l0drop.core.gates import Gates, unreadable
from l0drop.core.memory import Gating, has_shared_row
from l0drop.core.values import count, number

GateAt = Callable[[Tensor], Tensor]


class Draw(NamedTuple):
    """How `keep` acts in training: in some sentences, gates are sampled around the border between kept and dropped.

    gate: the sampled gate at a log α measured from the border, [B, N]; returns None if the gate does not sample.
    sentences: [B], True where gates are sampled. The other sentences keep the rows and gates that they would keep in
        decoding. So the gate learns the order of rows, and the decoder learns to work with the first of them.
    """

    gate: Callable[[Tensor], Tensor | None]
    sentences: Tensor


@dataclass(frozen=True, eq=False)
class Dial:
    """One setting of the dial; at most one of `keep`, `max_memory` and `shift`.

    keep: the share of real tokens to keep: n = max(1, round(keep · real tokens)) per sentence. It may be a tensor [B],
        one share per sentence. In training some sentences keep other rows (`Draw`).
    max_memory: the maximum number of rows in the memory, including the shared row of gating `zero` and `mean`;
        tokens of `always_keep` stay even beyond it.
    shift: added to log α; a larger shift keeps more.
    dense: decode on the full gated memory.
    """

    keep: float | Tensor | None = None
    max_memory: int | None = None
    shift: float | None = None
    dense: bool = False

    def __post_init__(self) -> None:
        turned = [name for name in ("keep", "max_memory", "shift") if getattr(self, name) is not None]
        if len(turned) > 1:
            got = " and ".join(f"`{name}`" for name in turned)
            raise ValueError(f"dial: choose one of `keep`, `max_memory` and `shift`, got {got}")
        if self.keep is not None:
            shares = self.keep if isinstance(self.keep, Tensor) else torch.tensor(number("`keep`", self.keep))
            if not unreadable(shares) and not bool(((shares > 0) & (shares <= 1)).all()):
                raise ValueError(f"`keep`: expected a share in (0, 1], got {self.keep}")
        if self.max_memory is not None:
            count("`max_memory`", self.max_memory)
        if self.shift is not None:
            number("`shift`", self.shift)
        if not isinstance(self.dense, bool):
            raise ValueError(f"`dense`: expected True or False, got {self.dense!r}")

    def __str__(self) -> str:
        """The arguments of `model.dial` that give this setting."""
        given = {name: value for name, value in vars(self).items() if value is not None and value is not False}
        return ", ".join(f"{name}={value}" for name, value in given.items())

    def turn(
        self,
        gates: Gates,
        mask_BN: Tensor,
        gating: Gating,
        at: GateAt,
        always_BN: Tensor | None,
        draw: Draw | None = None,
    ) -> Gates:
        """The gates at this setting.

        `at` gives the test-time gate of a log α; `always_BN` marks real tokens that are kept at any setting; `draw` is
        for `keep` in training.
        """
        if self.keep is None and self.max_memory is None and self.shift is None:
            return gates
        if gates.log_alpha is None:
            raise ValueError(
                "dial: this gate has no log α to rank or shift, because it is a rule; only `dense=True` works with it"
            )
        if self.shift is not None:
            values_BN = at(gates.log_alpha + float(self.shift)) * mask_BN
            return gates._replace(values=_keep_always(values_BN, always_BN))
        if self.max_memory is not None:
            return gates._replace(values=self._at_most(gates, mask_BN, gating, always_BN))
        assert self.keep is not None
        rank_BN = rank(gates.log_alpha, mask_BN, always_BN)
        wanted_B = rows_to_keep(self.keep, mask_BN)
        reachable_BN = _reachable(gates.log_alpha, mask_BN)
        chosen_BN = (rank_BN < wanted_B[:, None]) & reachable_BN
        reopened_BN = torch.where(gates.values == 0, 1.0, gates.values)
        values_BN = torch.where(chosen_BN, reopened_BN, 0.0)
        if draw is not None:
            border_B1, divided_B = _border(gates.log_alpha, wanted_B, reachable_BN, always_BN)
            drawn_BN = draw.gate(gates.log_alpha - border_B1)
            if drawn_BN is not None:
                here_BN = reachable_BN & (divided_B & draw.sentences)[:, None]
                values_BN = torch.where(here_BN, drawn_BN, values_BN)
        return gates._replace(values=_keep_always(values_BN, always_BN))

    def _at_most(self, gates: Gates, mask_BN: Tensor, gating: Gating, always_BN: Tensor | None) -> Tensor:
        assert self.max_memory is not None
        assert gates.log_alpha is not None
        rows = self.max_memory - has_shared_row(gating)
        if rows < 1:
            raise ValueError(
                f"`max_memory`: with gating {gating} one row represents the dropped tokens, and one is kept: at least 2"
            )
        open_BN = gates.values != 0
        rank_BN = rank(gates.log_alpha, open_BN, always_BN)
        return _keep_always(torch.where(rank_BN < rows, gates.values, 0.0), always_BN)


@dataclass(frozen=True, eq=False)
class Dials:
    """One dial for each sentence of a batch. All are dense or all are short."""

    each: tuple[Dial, ...]

    def __post_init__(self) -> None:
        if len({dial.dense for dial in self.each}) > 1:
            raise ValueError("`dense`: the sentences of one encoder call must agree; Engine.generate separates them")

    @property
    def dense(self) -> bool:
        return self.each[0].dense

    def __str__(self) -> str:
        return f"{len(self.each)} settings, one per sentence"

    def turn(
        self,
        gates: Gates,
        mask_BN: Tensor,
        gating: Gating,
        at: GateAt,
        always_BN: Tensor | None,
        draw: Draw | None = None,
    ) -> Gates:
        """The gates with each sentence at its own setting; see `Dial.turn`."""
        assert draw is None, "sampling is for training, where a dial has one setting"
        if len(self.each) != len(mask_BN):
            raise ValueError(f"dial: expected one setting for each of {len(mask_BN)} sentences, got {len(self.each)}")
        values_BN = gates.values.clone()
        for dial, sentences in self._groups():
            chosen = torch.tensor(sentences, device=mask_BN.device)
            part = Gates(*(None if tensor is None else tensor[chosen] for tensor in gates))  # type: ignore[arg-type]
            always = None if always_BN is None else always_BN[chosen]
            values_BN[chosen] = dial.turn(part, mask_BN[chosen], gating, at, always).values
        return gates._replace(values=values_BN)

    def _groups(self) -> list[tuple[Dial, list[int]]]:
        """The distinct settings, each with its sentences."""
        groups: dict[tuple[Any, ...], tuple[Dial, list[int]]] = {}
        for sentence, dial in enumerate(self.each):
            groups.setdefault((dial.keep, dial.max_memory, dial.shift), (dial, []))[1].append(sentence)
        return list(groups.values())


def dial_of(
    keep: float | Tensor | Sequence[float | None] | None = None,
    max_memory: int | Sequence[int | None] | None = None,
    shift: float | Sequence[float | None] | None = None,
    dense: bool | Sequence[bool] = False,
) -> Dial | Dials:
    """The dial of a batch: one for all sentences, or one for each if a setting is a list, with None where unset."""
    settings = {"keep": keep, "max_memory": max_memory, "shift": shift, "dense": dense}
    lists = {name: value for name, value in settings.items() if isinstance(value, (list, tuple))}
    if not lists:
        return Dial(keep, max_memory, shift, dense)  # type: ignore[arg-type]
    lengths = {name: len(value) for name, value in lists.items()}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise ValueError(f"dial: expected lists of the same length, one entry per sentence, got {lengths}")
    common = {name: value for name, value in settings.items() if name not in lists}
    if isinstance(keep, Tensor) and keep.dim():
        raise ValueError("`keep`: a tensor cannot be combined with lists of other settings; use a list")
    rows = zip(*lists.values(), strict=True)
    return Dials(tuple(Dial(**common, **dict(zip(lists, row, strict=True))) for row in rows))  # type: ignore[arg-type]


def rows_to_keep(keep: float | Tensor, mask_BN: Tensor) -> Tensor:
    """[B], n = max(1, round(keep · real tokens)); `keep` is one share, or one for each sentence."""
    share = torch.as_tensor(keep, dtype=torch.float64, device=mask_BN.device)
    if share.dim() and share.shape != mask_BN.shape[:1]:
        raise ValueError(
            f"`keep`: expected one share, or one for each of {len(mask_BN)} sentences, got {share.numel()}"
        )
    return (share * mask_BN.sum(1)).round().clamp_min(1).long()


def largest(score_BN: Tensor, keep: float, mask_BN: Tensor) -> Tensor:
    """[B, N], True on the share of real positions with the largest scores, ties by position; see `rows_to_keep`."""
    return mask_BN & (rank(score_BN, mask_BN) < rows_to_keep(keep, mask_BN)[:, None])


def _reachable(log_alpha_BN: Tensor, mask_BN: Tensor) -> Tensor:
    # log α = -inf marks a row that an earlier layer removed: there is no encoding to keep
    return mask_BN & (log_alpha_BN != -torch.inf)


def rank(score_BN: Tensor, among_BN: Tensor, always_BN: Tensor | None = None) -> Tensor:
    """0 for the position of largest score, 1 for the next, ties by position; `always_BN` comes first."""
    score_BN = score_BN.masked_fill(~among_BN, -torch.inf)
    if always_BN is not None:
        score_BN = score_BN.masked_fill(always_BN & among_BN, torch.inf)
    order_BN = score_BN.argsort(dim=1, descending=True, stable=True)
    # at -inf a position outside `among_BN` may precede one inside; a second stable sort puts it last
    outside_BN = (~among_BN).gather(1, order_BN).int()
    order_BN = order_BN.gather(1, outside_BN.argsort(dim=1, stable=True))
    ranks = torch.arange(order_BN.shape[1], device=order_BN.device).expand_as(order_BN)
    return torch.empty_like(order_BN).scatter(1, order_BN, ranks)


def _border(
    log_alpha_BN: Tensor, wanted_B: Tensor, among_BN: Tensor, always_BN: Tensor | None
) -> tuple[Tensor, Tensor]:
    """[B, 1], the log α halfway between the last kept row and the first dropped one; [B], whether there is one.

    The border is differentiable: raising one row's log α lowers those two rows relative to it. So the gate learns the
    order of rows, and not to open more of them.
    """
    if always_BN is not None:
        wanted_B = wanted_B - (always_BN & among_BN).sum(1)
        among_BN = among_BN & ~always_BN
    rank_BN = rank(log_alpha_BN, among_BN)
    next_to_border_BN = (rank_BN == wanted_B[:, None]) | (rank_BN == wanted_B[:, None] - 1)
    border_B1 = log_alpha_BN.masked_fill(~(next_to_border_BN & among_BN), 0).sum(1, keepdim=True) / 2
    return border_B1, (wanted_B >= 1) & (wanted_B < among_BN.sum(1))


def _keep_always(values_BN: Tensor, always_BN: Tensor | None) -> Tensor:
    return values_BN if always_BN is None else values_BN.masked_fill(always_BN, 1)
