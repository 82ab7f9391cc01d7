"""What an L0Drop model returns, from its encoder, from its forward and from `explain`."""

from dataclasses import dataclass

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from l0drop.core.gates import Gates


@dataclass
class L0DropEncoderOutput(BaseModelOutput):
    """A memory on its way to the decoder: `last_hidden_state` are its rows, `memory_bias` what attention adds to them,
    `memory_index` the source position of each, -1 for the zero row and padding.

    penalty, dropped, real: [B], each sentence's L0 term, closed test-time gates and real tokens. Per sentence, because
    `generate` repeats every tensor in here for its beams.
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
    """What `forward` returns.

    loss: in training, cross-entropy + λ · penalty; otherwise the cross-entropy alone.
    cross_entropy: of the labels, without the penalty.
    penalty: the L0 term, averaged over the batch's sentences.
    sparsity: the share of real tokens whose test-time gate is closed.
    gates, layer_gates: the gates at full length; with the layer-wise variant, of every layer.
    """

    encoder_global_attentions: tuple[Tensor, ...] | None = None
    cross_entropy: Tensor | None = None
    penalty: Tensor | None = None
    sparsity: Tensor | None = None
    gates: Gates | None = None
    layer_gates: tuple[Gates, ...] | None = None


@dataclass(frozen=True)
class Explanation:
    """What was decided for one sentence, padding cut off; `kept` are positions in what is left."""

    gates: Tensor
    log_alpha: Tensor | None
    kept: list[int]

    @property
    def sparsity(self) -> float:
        return 1 - len(self.kept) / len(self.gates)
