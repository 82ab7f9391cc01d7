"""Results of a text model.

Shapes: N source positions, T output tokens, L decoder layers, H heads.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SourceToken:
    """A source token, for the characters `text[start:end]`; both are None for a token that the tokenizer added."""

    text: str
    start: int | None
    end: int | None


@dataclass(frozen=True)
class Alternative:
    """An output other than the best."""

    text: str
    score: float


@dataclass(frozen=True)
class Result:
    """The output for one text; a blank text has a blank output, without score and tokens.

    text, score: the best output and its score with length penalty. kept: the source tokens in the memory; with a
    shortener that joins tokens into one row, the first token of each row.
    source_tokens, output_tokens: their numbers. cut: the number of source tokens cut off because the text was too long
    for the model. alternatives: the next best outputs, best first.
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
    """The output for one text, with gates and attention.

    source: all source tokens. gates, log_alpha: [N]; log_alpha is None for a rule, both are None without gates. kept:
    positions in `source`. output: tokens with EOS. attentions: [L, H, T, N], from output tokens to source tokens, 0 on
    dropped ones. zero_row: [L, H, T], attention to the row that stands for all dropped tokens. cut: the number of
    source tokens cut off because the text was too long for the model.
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
    cut: int = 0

    @property
    def attention(self) -> Tensor:
        """[T, N], the mean over layers and heads."""
        return self.attentions.mean((0, 1))

    @property
    def sparsity(self) -> float:
        return 1 - len(self.kept) / len(self.source)
