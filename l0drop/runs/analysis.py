"""`analysis.json` of a run and of a sweep: dropped tokens, attention, the cost of closing other gates."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from l0drop.data.score import Score
from l0drop.runs.json_file import JsonFile, Settings, flat, named, optional, read_any
from l0drop.runs.provenance import Provenance
from l0drop.runs.sweep import LEARNED


@dataclass(frozen=True)
class TaggingRecord:
    tagger: str
    language: str


@dataclass(frozen=True)
class AnalysedText:
    """The text that was measured on. target: what the targets are, such as "reference"."""

    name: str
    inputs: list[Settings]
    target: str
    sentences: int
    source_tokens: int
    target_tokens: int
    source_cut: int
    tagging: TaggingRecord | None = None


@dataclass(frozen=True)
class Histogram:
    """above: the number of values beyond the last bin."""

    bin_width: float
    counts: list[int]
    above: int


@dataclass(frozen=True, kw_only=True)
class MassOf:
    """Attention mass of one system's source tokens. of: which tokens."""

    of: str
    words: int
    mean: float
    share_under: float = named("share_under_0.6")
    share_under_of_mean: float = named("share_under_0.6_of_mean")
    share_untouched: float
    histogram: Histogram


@dataclass(frozen=True)
class Mass:
    """Attention mass by system. share_on_dropped: of all attention, by system."""

    what: str
    target_tokens: int
    systems: dict[str, MassOf]
    share_on_dropped: dict[str, float]
    share_on_zero_row: float | None = optional()


@dataclass(frozen=True)
class Rate:
    """Tokens, and the share dropped; None without tokens."""

    tokens: int
    sparsity: float | None


@dataclass(frozen=True)
class Groups:
    """Sparsity by group of tokens."""

    what: str
    groups: dict[str, Rate]


@dataclass(frozen=True)
class GateShares:
    """Tokens, sparsity, and the shares of gates by value."""

    tokens: int
    sparsity: float
    exactly_zero: float
    exactly_one: float
    between: float


@dataclass(frozen=True, kw_only=True)
class GateValues(GateShares):
    """The gates that decide what is kept, and those after each layer, if there are any."""

    expected_open_rate: float | None
    layers: list[GateShares] = optional(factory=list)


@dataclass(frozen=True)
class WordRate:
    word: str
    sparsity: float
    tokens: int


@dataclass(frozen=True, kw_only=True)
class WordBand(Rate):
    """Words by their frequency ranks, first and last."""

    ranks: tuple[int, int]
    most_dropped: list[WordRate]
    least_dropped: list[WordRate]


@dataclass(frozen=True, kw_only=True)
class Words(Rate):
    """Words of one token, by frequency."""

    what: str
    bands: list[WordBand]


@dataclass(frozen=True, kw_only=True)
class Bin(Rate):
    """last: None for the bin without an end."""

    first: float = named("from")
    last: float | None = named("to")


@dataclass(frozen=True)
class Bins:
    what: str
    bins: list[Bin]


@dataclass(frozen=True)
class Places:
    """Sparsity by length of the sentence and by position."""

    by_length: Bins
    by_position: Bins
    by_relative_position: Bins


@dataclass(frozen=True)
class KeptAndDropped:
    """Nats at kept and at dropped positions; None where there are none."""

    kept: float | None = None
    dropped: float | None = None


@dataclass(frozen=True)
class Entropy:
    """Entropy of the encoder's last self-attention, by system; positions: how many."""

    what: str
    positions: dict[str, int]
    sparse: KeptAndDropped | None = optional()
    baseline: KeptAndDropped | None = optional()
    uniform: KeptAndDropped | None = optional()


@dataclass(frozen=True)
class AttentionWeights:
    """One line of weights per target token; on_dropped: each target token's weight on dropped words."""

    weights: list[list[float]]
    on_dropped: list[float]


@dataclass(frozen=True)
class AttentionMap:
    """The cross-attention of one sentence, counted from 0, in every system."""

    sentence: int
    source: list[str]
    target: list[str]
    kept: list[bool]
    systems: dict[str, AttentionWeights]


@dataclass(frozen=True)
class CrossTime:
    """The share of the decoder's time in cross-attention."""

    share: float
    cross_attention_seconds: float
    decoder_seconds: float


@dataclass(frozen=True)
class DecoderTime:
    what: str
    sentences: int
    beams: int
    rounds: int
    systems: dict[str, CrossTime]


@dataclass(frozen=True)
class Closed:
    """The cost of closing gates manually. score: None for outputs that are the targets themselves."""

    closed: str
    share: float
    sparsity: float
    cross_entropy: float
    score: Score | None

    @staticmethod
    def upgraded(content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Older files have other names for closed gates."""
        names = {"what the model closes": "the model's choice", "nothing": "none"}
        return {"score": None, **content, "closed": names.get(content["closed"], content["closed"])}


@dataclass(frozen=True)
class Interventions:
    what: str
    gating: str
    systems: dict[str, list[Closed]]


@dataclass(frozen=True)
class SourceScore:
    """score: None for outputs that are the targets themselves."""

    score: Score | None
    cross_entropy: float


@dataclass(frozen=True)
class SourceUse:
    """Scores with the right source and with wrong ones."""

    what: str
    output_without_source: str
    own_source: SourceScore
    shuffled_source: SourceScore
    no_source: SourceScore


@dataclass(frozen=True, kw_only=True)
class ModelAnalysis:
    """The parts that were measured of one model.

    models: the compared models by role. missing: roles without a model, left_out: parts without numbers; both with the
    reasons.
    """

    models: dict[str, str]
    fingerprints: dict[str, str]
    gating: str | None = optional()
    sparsity: float | None = optional()
    mass: Mass | None = optional()
    maps: list[AttentionMap] | None = optional()
    gates: GateValues | None = optional()
    groups: Groups | None = optional()
    words: Words | None = optional()
    places: Places | None = optional()
    entropy: Entropy | None = optional()
    time: DecoderTime | None = optional()
    interventions: Interventions | None = optional()
    source: SourceUse | None = optional()
    missing: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A model by its sparsity."""
        return "dense" if self.sparsity is None else f"{self.sparsity:.1%} dropped"


@dataclass(frozen=True, kw_only=True)
class Analysis(ModelAnalysis, JsonFile):
    """The analysis of a run. earlier: the provenance of parts from an earlier analysis, where it differs."""

    COMMAND = "l0drop analyze"

    text: AnalysedText
    decoding: Settings
    dtype: str
    earlier: dict[str, Provenance] | None = optional()
    made_by: Provenance | None = flat()


@dataclass(frozen=True, kw_only=True)
class PointAnalysis(ModelAnalysis):
    """One point of a sweep. scores: by split, from the sweep."""

    run: str
    kind: str
    value: float | None
    scores: dict[str, Score]

    @property
    def is_learned(self) -> bool:
        return self.kind in LEARNED

    @property
    def name(self) -> str:
        """A model by its sparsity; a rule by its name too."""
        dropped = super().name
        return dropped if self.is_learned else f"{self.run}, {dropped}"


@dataclass(frozen=True, kw_only=True)
class SweepAnalysis(JsonFile):
    """The analysis of all points of a sweep."""

    COMMAND = "l0drop analyze"

    sweep: str
    points: list[PointAnalysis]
    text: AnalysedText
    decoding: Settings
    dtype: str
    made_by: Provenance | None = flat()


def read_analysis(path: Path) -> Analysis | SweepAnalysis:
    """Read the analysis of a run or of a sweep."""
    content = read_any(path, Analysis.remedy(path))
    is_sweep = isinstance(content, dict) and "points" in content
    return SweepAnalysis.read(path) if is_sweep else Analysis.read(path)
