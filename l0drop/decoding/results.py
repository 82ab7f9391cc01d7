"""What a text model gives back.

Shapes: N source positions, T output tokens, L decoder layers, H heads.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SourceToken:
    """A token of the source: `text[start:end]` is what it stands for; both are None for one that was added to it."""

    text: str
    start: int | None
    end: int | None


@dataclass(frozen=True)
class Alternative:
    """One of the outputs after the best."""

    text: str
    score: float


@dataclass(frozen=True)
class Result:
    """What became of one text; a blank text gives a blank one, without score and tokens.

    score: of the best output, with length penalty. kept: the source tokens in the memory. source_tokens, output_tokens:
    how many there are. cut: source tokens that were too many for the model. alternatives: best first.
    """

    text: str
    score: float | None = None
    kept: tuple[SourceToken, ...] = ()
    source_tokens: int = 0
    output_tokens: int = 0
    cut: int = 0
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, eq=False)
class Explained:
    """One text with everything that was decided.

    source: all tokens. gates, log_alpha: [N]; log_alpha is None for a rule, both are None without a gate. kept:
    positions in `source`. output: tokens, EOS included. attentions: [L, H, T, N], of each output token over the source,
    0 on dropped tokens. zero_row: [L, H, T], what went to the row that stands for all dropped tokens.
    """

    text: str
    score: float
    source: tuple[SourceToken, ...]
    gates: Tensor | None
    log_alpha: Tensor | None
    kept: list[int]
    output: list[str]
    attentions: Tensor
    zero_row: Tensor

    @property
    def attention(self) -> Tensor:
        """[T, N], the mean over layers and heads."""
        return self.attentions.mean((0, 1))

    @property
    def sparsity(self) -> float:
        return 1 - len(self.kept) / len(self.source)
