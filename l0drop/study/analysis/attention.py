"""Where attention goes: mass per source word, entropy of the encoder's last layer, maps of single sentences.

Shapes: B sentences, N source positions, T target positions, H heads. Masks are True on real tokens.
"""

import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l0drop.core.gates import Gates
from l0drop.core.memory import has_shared_row
from l0drop.models.adopt import adopt_parameters
from l0drop.models.modeling import L0DropModel
from l0drop.models.sparsify import sparsify
from l0drop.runs.analysis import AttentionWeights, Entropy, Histogram, KeptAndDropped, Mass, MassOf
from l0drop.training.objective import decoder_inputs

ZERO_ROW = "sparse_zero_row"
"""The role of a sparse model that is measured with a zero row, although it was trained without one."""
LITTLE = 0.6
"""The paper's threshold for little attention; the mean is 1 if source and target have the same length."""


@dataclass(frozen=True)
class Attention:
    """One batch's attention weights, averaged over heads; cross-attention also over layers.

    cross: [B, T, N], each real target position's weights over the source; 0 elsewhere. The weight of the shared row
        (of gating `zero` and `mean`) is divided equally among the dropped positions that it represents.
    encoder: [B, N, N], the last layer's self-attention; None if it has another form in this model family.
    gates: of a gated model; layer_gates: of every layer, if gates are between layers.
    """

    cross: Tensor
    encoder: Tensor | None
    mask: Tensor
    gates: Gates | None
    layer_gates: tuple[Gates, ...] | None

    @property
    def kept(self) -> Tensor:
        """[B, N]; all real tokens if there is no gate."""
        return self.mask if self.gates is None else (self.gates.values != 0) & self.mask


def observable(model: Any) -> Any:
    """A copy of the model that returns its attention weights."""
    watched = copy.deepcopy(model).eval()
    if watched.config._attn_implementation != "eager":
        watched.set_attn_implementation("eager")
    return watched


def with_zero_row(model: L0DropModel) -> L0DropModel:
    """A model of gating `mask` as its authors measured theirs (Figure 6): a zero row stands for the dropped encodings.

    It shares the model's parameters and gate, but was never trained with that row, so it is for measuring only.
    """
    l0drop = model.config.l0drop
    if l0drop.gating != "mask":
        raise ValueError(f"`zero_row`: is for a model of gating mask, and this one has gating {l0drop.gating}")
    if l0drop.layerwise:
        raise ValueError("`zero_row`: with gates between layers, masked rows are gone before the last gate")
    base = adopt_parameters(model, model.base_class, model.config.to_base())
    other = sparsify(base, replace(l0drop, gating="zero"))
    other.gate = model.gate
    return other


def cells_per_sentence(model: Any, source: int, target: int) -> int:
    """The number of attention weights for a sentence of these lengths, in all layers and heads."""
    config = model.config
    encoder = config.num_hidden_layers * source * source
    layers = getattr(config, "decoder_layers", None) or getattr(config, "num_decoder_layers", None)
    decoder = (layers or config.num_hidden_layers) * target * (source + target)
    return int(config.num_attention_heads) * (encoder + decoder)


@torch.no_grad()
def attend(model: Any, inputs: dict[str, Any], labels: Tensor) -> Attention:
    """Run an `observable` model on forced targets.

    A gated model runs on the dense memory, where every row keeps its position; attention is the same as on the short
    memory.
    """
    gated = isinstance(model, L0DropModel)
    arguments = {**inputs, **decoder_inputs(model, labels), "output_attentions": True, "use_cache": False}
    if gated:
        with model.dial(dense=True):
            output = model(**arguments)
    else:
        output = model(**{name: value for name, value in arguments.items() if name != "hints"})
    mask_BN = inputs["attention_mask"].bool()
    cross_BTN = torch.stack([weights.float().mean(1) for weights in output.cross_attentions]).mean(0)
    cross_BTN = cross_BTN * (labels != -100)[..., None]
    encoder = output.encoder_attentions[-1].float()
    square = encoder.dim() == 4 and encoder.shape[-2:] == (mask_BN.shape[1], mask_BN.shape[1])
    return Attention(
        cross=cross_BTN,
        encoder=encoder.mean(1) if square else None,
        mask=mask_BN,
        gates=output.gates if gated else None,
        layer_gates=output.layer_gates if gated else None,
    )


def mass(cross_BTN: Tensor) -> Tensor:
    """[B, N], the attention that a source position gets from the whole target; the sum is the target length."""
    return cross_BTN.double().sum(1)


def renormalised(cross_BTN: Tensor, kept_BN: Tensor) -> Tensor:
    """The weights on kept positions only, scaled to a sum of 1 for each target position (0 if it has none)."""
    on_kept_BTN = cross_BTN.double() * kept_BN[:, None]
    total_BT1 = on_kept_BTN.sum(-1, keepdim=True)
    return torch.where(total_BT1 > 0, on_kept_BTN / total_BT1.clamp_min(torch.finfo(torch.float64).tiny), 0.0)


def entropy(weights: Tensor) -> Tensor:
    """-Σ p ln p over the last dimension, in nats; 0 ln 0 = 0."""
    return -torch.special.xlogy(weights.double(), weights.double()).sum(-1)


@dataclass
class MassMeter:
    """The distribution of attention mass over source words, in constant memory."""

    FINE = 1000  # bins per unit; quantiles are interpolated
    TOP = 20
    COARSE = 10  # bins per unit of the reported histogram
    SHOWN = 6

    words: int = 0
    total: float = 0.0
    little: int = 0
    untouched: int = 0
    counts: np.ndarray = field(default_factory=lambda: np.zeros(MassMeter.FINE * MassMeter.TOP + 1, dtype=np.int64))

    def add(self, values: Tensor) -> None:
        """values: the masses of some words."""
        masses = values.detach().cpu().double().numpy()
        self.words += masses.size
        self.total += float(masses.sum())
        self.little += int((masses < LITTLE).sum())
        self.untouched += int((masses == 0).sum())
        bins = np.minimum((masses * self.FINE).astype(np.int64), len(self.counts) - 1)
        self.counts += np.bincount(bins, minlength=len(self.counts))

    @property
    def mean(self) -> float:
        return self.total / self.words if self.words else 0.0

    def share_under(self, limit: float) -> float:
        """Share of words with less mass than `limit`, accurate to one bin."""
        position = min(limit * self.FINE, len(self.counts) - 1)
        whole = int(position)
        return float(self.counts[:whole].sum() + (position - whole) * self.counts[whole]) / max(1, self.words)

    def result(self, of: str) -> MassOf:
        """of: which words were added."""
        shown = self.counts[: self.FINE * self.SHOWN].reshape(-1, self.FINE // self.COARSE).sum(1)
        return MassOf(
            of=of,
            words=self.words,
            mean=self.mean,
            share_under=self.little / max(1, self.words),
            share_under_of_mean=self.share_under(LITTLE * self.mean),
            share_untouched=self.untouched / max(1, self.words),
            histogram=Histogram(1 / self.COARSE, shown.tolist(), int(self.words - shown.sum())),
        )


@dataclass
class MassStudy:
    """Attention mass of all compared systems, on the same sentences and targets."""

    meters: dict[str, MassMeter] = field(default_factory=dict)
    target_tokens: int = 0
    on_dropped: dict[str, float] = field(default_factory=dict)

    def add(self, systems: dict[str, Attention]) -> None:
        """Add one batch; the gates of `sparse` decide which words are kept."""
        sparse = systems.get("sparse")
        first = next(iter(systems.values()))
        self.target_tokens += int(first.cross.sum(-1).round().sum())
        for name, attention in systems.items():
            mass_BN = mass(attention.cross)
            if sparse is None:
                self._add(name, mass_BN[attention.mask])
                continue
            kept_BN = attention.kept if name == ZERO_ROW else sparse.kept  # it may drop all rows of a sentence
            dropped_BN = attention.mask & ~kept_BN
            self.on_dropped[name] = self.on_dropped.get(name, 0.0) + float(mass_BN[dropped_BN].sum())
            if name in ("sparse", ZERO_ROW):
                self._add(name, mass_BN[kept_BN])
                continue
            self._add(name, mass_BN[attention.mask])
            if name == "baseline":
                self._add("baseline_kept", mass_BN[sparse.kept])
                self._add("baseline_dropped", mass_BN[dropped_BN])
                self._add("baseline_renormalised", mass(renormalised(attention.cross, sparse.kept))[sparse.kept])

    def _add(self, name: str, values: Tensor) -> None:
        self.meters.setdefault(name, MassMeter()).add(values)

    def result(self, gating: str | None) -> Mass:
        """gating: of the sparse model, if there is one."""
        words = {
            "baseline": "every source word",
            "entmax": "every source word",
            "sparse": "kept words",
            ZERO_ROW: "kept words; the sparse model was trained without a zero row, and is measured with one here",
            "baseline_kept": "words that the sparse model keeps",
            "baseline_dropped": "words that the sparse model drops",
            "baseline_renormalised": "words that the sparse model keeps; each target position's weights on them are "
            "divided by their sum",
        }
        on_dropped = {name: total / max(1, self.target_tokens) for name, total in self.on_dropped.items()}
        shared = gating is not None and has_shared_row(gating)
        return Mass(
            what="cross-attention averaged over heads and layers, summed over the target, per source token",
            target_tokens=self.target_tokens,
            systems={name: meter.result(words[name]) for name, meter in self.meters.items()},
            share_on_dropped=on_dropped,
            share_on_zero_row=None if gating is None else on_dropped["sparse"] if shared else 0.0,
        )


@dataclass
class EntropyStudy:
    """Entropy of the encoder's last self-attention at kept and at dropped positions."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, systems: dict[str, Attention], kept_BN: Tensor) -> None:
        for name, attention in systems.items():
            assert attention.encoder is not None
            entropy_BN = entropy(attention.encoder)
            for kind, chosen_BN in (("kept", kept_BN), ("dropped", attention.mask & ~kept_BN)):
                self._add(f"{name} {kind}", entropy_BN[chosen_BN])
        uniform_BN = next(iter(systems.values())).mask.sum(1, keepdim=True).double().log().expand_as(kept_BN)
        mask_BN = next(iter(systems.values())).mask
        for kind, chosen_BN in (("kept", kept_BN), ("dropped", mask_BN & ~kept_BN)):
            self._add(f"uniform {kind}", uniform_BN[chosen_BN])

    def _add(self, key: str, values: Tensor) -> None:
        self.sums[key] = self.sums.get(key, 0.0) + float(values.sum())
        self.counts[key] = self.counts.get(key, 0) + values.numel()

    def result(self) -> Entropy:
        systems: dict[str, dict[str, float | None]] = {}
        for key, total in self.sums.items():
            name, kind = key.split()
            systems.setdefault(name, {})[kind] = total / self.counts[key] if self.counts[key] else None
        found = {name: KeptAndDropped(**values) for name, values in systems.items()}
        return Entropy(
            what="entropy (nats) of the last encoder layer's self-attention, averaged over heads, then over positions; "
            "uniform: the entropy of equal weights on all positions",
            positions={kind: self.counts.get(f"uniform {kind}", 0) for kind in ("kept", "dropped")},
            **found,
        )


def attention_map(attention: Attention, row: int, length: int, steps: int, kept_BN: Tensor) -> AttentionWeights:
    """One sentence's weights, `steps` lines of `length`; `on_dropped` is each target position's weight on dropped
    words, which with gating `zero` and `mean` is that of the shared row."""
    weights = attention.cross[row, :steps, :length]
    dropped = ~kept_BN[row, :length]
    shown = weights if attention.gates is None else weights.masked_fill(dropped, 0)
    return AttentionWeights(
        weights=[[round(value, 4) for value in line] for line in shown.tolist()],
        on_dropped=[round(value, 4) for value in weights[:, dropped].sum(1).tolist()],
    )
