"""Outputs of an L0Drop model: of its encoder, of its forward, and of `explain`."""

from dataclasses import dataclass

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from l0drop.core.gates import Gates


@dataclass
class L0DropEncoderOutput(BaseModelOutput):
    """A memory for the decoder.

    last_hidden_state: its rows.
    memory_bias: the bias to add to the attention scores.
    memory_index: the source position of each row; -1 for the shared row and padding.
    gates: at full length; with a shortener 1 at the positions in memory_index, 0 elsewhere.
    penalty, dropped, real: [B], each sentence's penalty, number of closed test-time gates, and number of real tokens
        (for Whisper: of rows that audio covers).
        Per sentence, because `generate` repeats every tensor in here for its beams.
    """

    global_attentions: tuple[Tensor, ...] | None = None
    memory_bias: Tensor | None = None
    memory_index: Tensor | None = None
    gates: Gates | None = None
    layer_gates: tuple[Gates, ...] | None = None
    penalty: Tensor | None = None
    dropped: Tensor | None = None
    real: Tensor | None = None


@dataclass
class L0DropOutput(Seq2SeqLMOutput):
    """The output of `forward`.

    loss: in training, cross-entropy + λ · penalty; otherwise the cross-entropy alone.
    cross_entropy: of the labels, without the penalty.
    penalty: the L0 penalty, averaged over the batch's sentences.
    sparsity: the share of real tokens whose test-time gate is closed; with a shortener, without a row of their own.
    gates: the gates at full length; with a shortener 1 where a row of the memory begins, 0 elsewhere.
    layer_gates: with layerwise gates, the gates of every layer.
    """

    encoder_global_attentions: tuple[Tensor, ...] | None = None
    cross_entropy: Tensor | None = None
    penalty: Tensor | None = None
    sparsity: Tensor | None = None
    gates: Gates | None = None
    layer_gates: tuple[Gates, ...] | None = None


@dataclass(frozen=True)
class Explanation:
    """The gates of one sentence without its padding; `kept` are the positions of kept tokens.

    covered: [N], the rows that count for `sparsity`: all tokens of a text, the rows that audio covers.
    """

    gates: Tensor
    log_alpha: Tensor | None
    kept: list[int]
    covered: Tensor

    @property
    def sparsity(self) -> float:
        """The share of dropped rows among those that count."""
        counted = int(self.covered.sum())
        return int(((self.gates == 0) & self.covered).sum()) / counted if counted else 0.0

    @property
    def sparsity_of_all(self) -> float:
        """The share of dropped rows among all rows, those of silence after the audio included."""
        return 1 - len(self.kept) / len(self.gates)
