"""A score of generated text, without the libraries that compute it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

MetricName = Literal["bleu", "bleu_paper", "chrf", "rouge"]
METRICS: tuple[MetricName, ...] = get_args(MetricName)
BleuTokenizer = Literal["13a", "intl", "zh", "none"]


@dataclass(frozen=True)
class Score:
    """A value with its name, its signature, and the numbers it is computed from."""

    name: str
    value: float
    signature: str
    details: Mapping[str, float] = field(default_factory=dict)
