"""Gates that follow a rule: the paper's patterns (table 2), and two baselines that ignore the words.

| gate       | drops                                                           | EOS              | hints      |
|------------|-----------------------------------------------------------------|------------------|------------|
| `pos`      | function words, punctuation, BPEO (later pieces of words), MD, EX | kept: no group | `label`    |
| `freq`     | the most frequent words, up to a share of the training tokens   | kept: no word    | `frequent` |
| `inv_freq` | the rarest words, up to a share of the training tokens          | kept: no word    | `rare`     |
| `group`    | every second token, starting with the second                    | like any token   |            |
| `random`   | a share of each sentence, chosen by a hash of its token ids     | like any token   |            |
| `open`     | nothing: the model's dropping is another's, such as `cut_padding` | like any token |            |
| `norm`     | a share of each sentence, the tokens of smallest or largest norm | like any token  |            |

`l0drop.data.hints` computes the hints from text. Rules do not learn; the model can be fine-tuned with the rule, or used
unchanged. Positions are counted in real tokens, so padding has no effect.

Shapes: B sentences, N source positions. Masks are True on real tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from l0drop.core import hard_concrete
from l0drop.core.dial import largest
from l0drop.core.gates import Gate, Gates, register_gate
from l0drop.core.groups import GROUPS, LABELS, group_of

Hints = Mapping[str, Tensor] | None

LABEL = "label"
"""The hint with each token's index in `LABELS`."""
FREQUENT, RARE = "frequent", "rare"
"""The hints with the share of the training tokens, in billionths, whose words are at least as frequent, or at least as
rare, as this token's word. Tokens that belong to no word have `WHOLE`."""
WHOLE = 10**9

_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # base of the hash of a sentence: odd, so that every token counts


@register_gate("pos")
class PosGate(Gate):
    """Drops tokens by kind: `drop` lists the paper's groups or labels (Penn tags, BPEH, BPEO, EOS).

    A piece of a split word is BPEH or BPEO whatever the word, so the first piece of a split MD stays.
    """

    needs = (LABEL,)

    def __init__(self, drop: Sequence[str] = ("function", "punctuation", "BPEO", "MD", "EX")) -> None:
        super().__init__()
        unknown = [name for name in drop if name not in GROUPS and name not in LABELS]
        if unknown or isinstance(drop, str):
            raise ValueError(f"drop: expected a list of groups ({', '.join(GROUPS)}) or Penn tags, got {drop!r}")
        self.numbers = [n for n, label in enumerate(LABELS) if label in drop or group_of(label) in drop]

    def forward(self, encodings: Tensor, mask: Tensor, input_ids: Tensor | None = None, hints: Hints = None) -> Gates:
        label_BN = needed(self, hints, LABEL, mask)
        dropped_BN = torch.isin(label_BN, torch.tensor(self.numbers, device=label_BN.device))
        return Gates(_values(mask & ~dropped_BN, encodings))


class _ByFrequency(Gate):
    """Drops the words at one end of the frequency ranks, at most `share` of the training tokens in total."""

    def __init__(self, share: float) -> None:
        super().__init__()
        if not 0 < share < 1:
            raise ValueError(f"share: expected a share of the training tokens between 0 and 1, got {share}")
        self.share = share

    def forward(self, encodings: Tensor, mask: Tensor, input_ids: Tensor | None = None, hints: Hints = None) -> Gates:
        (name,) = self.needs
        kept_BN = needed(self, hints, name, mask) > round(self.share * WHOLE)
        return Gates(_values(mask & kept_BN, encodings))


@register_gate("freq")
class FreqGate(_ByFrequency):
    """Drops the most frequent words; in the paper the first 100, 46.3% of the training tokens."""

    needs = (FREQUENT,)

    def __init__(self, share: float = 0.463) -> None:
        super().__init__(share)


@register_gate("inv_freq")
class InvFreqGate(_ByFrequency):
    """Drops the rarest words, including unseen ones; in the paper those below rank 452, 40% of the training tokens."""

    needs = (RARE,)

    def __init__(self, share: float = 0.4) -> None:
        super().__init__(share)


@register_gate("group")
class GroupGate(Gate):
    """Keeps the tokens at odd positions, counted from 1."""

    def forward(self, encodings: Tensor, mask: Tensor, input_ids: Tensor | None = None, hints: Hints = None) -> Gates:
        return Gates(_values(mask & (mask.cumsum(1) % 2 == 1), encodings))


@register_gate("open")
class OpenGate(Gate):
    """Keeps everything, for a model that only cuts padding, or a dense one in the same code."""

    def forward(self, encodings: Tensor, mask: Tensor, input_ids: Tensor | None = None, hints: Hints = None) -> Gates:
        return Gates(_values(mask, encodings))


class _ByScore(Gate):
    """Keeps the max(1, round((1 - rate) · real tokens)) tokens of largest score, ties by position.

    The score is returned as log α, for the dial's `keep` and `max_memory`. It cannot be shifted.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"rate: expected a share to drop, at least 0 and below 1, got {rate}")
        self.rate = rate

    def forward(self, encodings: Tensor, mask: Tensor, input_ids: Tensor | None = None, hints: Hints = None) -> Gates:
        score_BN = self.score(encodings, mask, input_ids)
        return Gates(_values(largest(score_BN, 1 - self.rate, mask), encodings), log_alpha=score_BN)

    def score(self, encodings: Tensor, mask: Tensor, input_ids: Tensor | None) -> Tensor:
        """[B, N]; tokens with the largest scores stay."""
        raise NotImplementedError


@register_gate("random")
class RandomGate(_ByScore):
    """Drops tokens at random: the same ones of a sentence at every call, in any batch and with any padding."""

    def __init__(self, rate: float = 0.5, seed: int = 0) -> None:
        super().__init__(rate)
        self.seed = seed

    def score(self, encodings: Tensor, mask: Tensor, input_ids: Tensor | None) -> Tensor:
        if input_ids is None:
            raise ValueError("input_ids: the gate random hashes token ids; pass input_ids, not embeddings")
        return hard_concrete.keyed_uniforms(sentence_key(input_ids, mask), mask.cumsum(1) - 1, self.seed)


@register_gate("norm")
class NormGate(_ByScore):
    """Drops the encodings of smallest norm, for which a zero vector is the smallest change; or the largest."""

    def __init__(self, rate: float = 0.5, drop: Literal["smallest", "largest"] = "smallest") -> None:
        super().__init__(rate)
        if drop not in ("smallest", "largest"):
            raise ValueError(f"drop: expected smallest or largest, got {drop!r}")
        self.sign = 1 if drop == "smallest" else -1

    def score(self, encodings: Tensor, mask: Tensor, input_ids: Tensor | None) -> Tensor:
        return self.sign * hard_concrete.wide(encodings.detach()).norm(dim=-1)


def _values(kept_BN: Tensor, encodings: Tensor) -> Tensor:
    return kept_BN.to(torch.float64 if encodings.dtype == torch.float64 else torch.float32)


def sentence_key(input_ids: Tensor, mask: Tensor) -> Tensor:
    """[B], a hash of each sentence's real token ids in their order: Σ (id + 1) · c^position, modulo 2^64."""
    power_N = torch.full(mask.shape[1:], _ODD, dtype=torch.int64, device=mask.device).cumprod(0)
    part_BN = (input_ids.to(torch.int64) + 1) * power_N[(mask.cumsum(1) - 1).clamp_min(0)]
    return part_BN.masked_fill(~mask, 0).sum(1)


def needed(gate: Gate, hints: Hints, name: str, mask: Tensor) -> Tensor:
    """A hint that a rule requires."""
    if hints is None or name not in hints:
        raise ValueError(
            f"hints: {type(gate).__name__} needs the hint {name!r} for every source token; l0drop.load computes it "
            "from text, as does l0drop.data.hints.annotator_for(folder, tokenizer)(texts, encoding)"
        )
    if hints[name].shape != mask.shape:
        raise ValueError(f"hints: {name!r} must have shape {tuple(mask.shape)}, got {tuple(hints[name].shape)}")
    return hints[name]
