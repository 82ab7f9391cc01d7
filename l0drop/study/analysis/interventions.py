"""The cost of closing the gates of some words manually, without retraining.

Content words are compared with the same number of function words in every sentence, so the comparison depends on which
words are closed, not on how many.

Shapes: B sentences, N source positions. Masks are True on real tokens.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from l0drop.core import hard_concrete
from l0drop.core.gates import Gate, Gates
from l0drop.core.groups import LABELS, group_of
from l0drop.models.config import L0DropConfig
from l0drop.models.patterns import LABEL, needed, sentence_key
from l0drop.models.sparsify import sparsify
from l0drop.runs.analysis import Closed, Interventions
from l0drop.study.analysis.material import Material, forced_cross_entropy
from l0drop.study.systems import Advance

SHARES = (0.5, 1.0)
KINDS = ("content", "function")


class Closing(Gate):
    """Closes words of some groups: in each sentence, `share` of the count of its rarest group of `matched`.

    The words are drawn with a key made from the sentence's tokens, so the draw depends neither on the batch nor on
    earlier draws. Other words keep the gate that `own` gives them, or get 1 if it is closed.
    """

    needs = (LABEL,)

    def __init__(
        self, closing: Sequence[str], matched: Sequence[str], share: float = 1.0, own: Gate | None = None
    ) -> None:
        super().__init__()
        self.closing, self.matched, self.share, self.own = closing, matched, share, own

    def forward(
        self,
        encodings: Tensor,
        mask: Tensor,
        input_ids: Tensor | None = None,
        hints: Mapping[str, Tensor] | None = None,
    ) -> Gates:
        assert input_ids is not None
        label_BN = needed(self, hints, LABEL, mask)
        values_BN = torch.ones_like(mask, dtype=hard_concrete.wide(encodings).dtype)
        if self.own is not None:
            values_BN = self.own(encodings, mask, input_ids=input_ids, hints=hints).values
            values_BN = torch.where(values_BN == 0, 1.0, values_BN)
        counts = torch.stack([(of_groups([group], label_BN) & mask).sum(1) for group in self.matched])
        closed_B = (counts.amin(0) * self.share).round()
        among_BN = of_groups(self.closing, label_BN) & mask
        drawn_BN = hard_concrete.keyed_uniforms(sentence_key(input_ids, mask), mask.cumsum(1))
        rank_BN = drawn_BN.masked_fill(~among_BN, torch.inf).argsort(dim=1, stable=True).argsort(1)
        closed_BN = among_BN & (rank_BN < closed_B[:, None])
        return Gates(values_BN.masked_fill(closed_BN, 0) * mask)


def of_groups(names: Sequence[str], label_BN: Tensor) -> Tensor:
    """[B, N], True for labels of these groups."""
    numbers = [number for number, label in enumerate(LABELS) if group_of(label) in names]
    return torch.isin(label_BN, torch.tensor(numbers, device=label_BN.device))


def interventions(models: Mapping[str, Any], material: Material, progress: Advance | None = None) -> Interventions:
    """Forced cross-entropy and score with words closed manually.

    models: `sparse` and, if there is one, `baseline`, which was never trained with closed gates. A row has no score if
    its outputs are the targets themselves.
    """
    sparse = models["sparse"]
    gating = sparse.config.l0drop.gating
    systems = {}
    for name in ("sparse", "baseline"):
        if name not in models:
            continue
        model = copy.deepcopy(models[name])
        if name == "baseline":
            model = sparsify(model, L0DropConfig(gating=gating)).eval()
        own = model.gate if name == "sparse" else None
        rows = []
        for arm, share, gate in arms(own):
            model.gate = gate
            texts, meter = material.decode(model)
            score = None if name == material.target_of and gate is own else material.score(texts)
            rows.append(Closed(arm, share, meter.sparsity, forced_cross_entropy(model, material), score))
            if progress:
                progress(1)
        systems[name] = rows
    return Interventions(
        what="gates closed manually, without retraining; in every sentence the same number of words of either kind, "
        "this share of the count of the rarer kind; pieces of split words and EOS stay open; cross-entropy in nats per "
        f"target token; scores against {material.described_target}",
        gating=gating,
        systems=systems,
    )


def arms(own: Gate | None) -> Iterator[tuple[str, float, Gate]]:
    """The closed words, their share, and the gate that closes them; first the model's own gate, if it has one."""
    if own is not None:
        yield "the model's choice", 0.0, own
    yield "none", 0.0, Closing(KINDS, KINDS, 0.0, own)
    for share in SHARES:
        for kind in KINDS:
            yield f"{kind} words", share, Closing([kind], KINDS, share, own)
        yield "words of both kinds", share, Closing(KINDS, KINDS, share, own)
