"""Models with random weights, and a gate that drops a given share: for measuring speed."""

from typing import Any

import torch
import transformers as hf
from torch import Tensor

from l0drop.core.gates import Gate, Gates


def transformer_base(vocabulary: int = 32_000, **changes: Any) -> hf.MarianMTModel:
    """The paper's Transformer base with random weights: Marian, 6 + 6 layers, d 512, 8 heads, ffn 2048."""
    torch.manual_seed(0)
    settings = {
        "vocab_size": vocabulary, "decoder_vocab_size": vocabulary, "d_model": 512, "encoder_layers": 6,
        "decoder_layers": 6, "encoder_attention_heads": 8, "decoder_attention_heads": 8, "encoder_ffn_dim": 2048,
        "decoder_ffn_dim": 2048, "activation_function": "relu", "scale_embedding": True, "dropout": 0.1,
        "max_position_embeddings": 4096, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1,
        "forced_eos_token_id": None,
    }  # fmt: skip
    return hf.MarianMTModel(hf.MarianConfig(**{**settings, **changes}))


class Share(Gate):
    """Keeps a share of the tokens, spread evenly; for measuring speed at a given sparsity."""

    def __init__(self, keep: float) -> None:
        super().__init__()
        self.keep = keep

    def graph_key(self) -> tuple[Any, ...]:
        return (self.keep,)

    def forward(self, encodings: Tensor, mask: Tensor, input_ids: Any = None, hints: Any = None) -> Gates:
        position = mask.cumsum(1)
        kept = ((position * self.keep).floor() > ((position - 1) * self.keep).floor()) & mask
        score = torch.where(kept, 9.0, -9.0)
        return Gates(kept.to(score.dtype), torch.sigmoid(score) * mask, score)


def sharpen(model: torch.nn.Module) -> None:
    """Enlarge random weights so that attention is peaked, as in a trained model; at first it is nearly uniform."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and "embed" not in name and "shared" not in name:
            parameter.normal_(0, 1.2 / parameter.shape[1] ** 0.5)
