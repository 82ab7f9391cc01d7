"""Tiny models of every supported family, with peaked attention and non-zero biases, so that errors become visible."""

import copy

import torch
import transformers as hf

VOCABULARY, WIDTH = 97, 32

_COMMON = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
_POSITIONS = {"max_position_embeddings": 64}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "dropout_rate": 0.0,
}
_LED = {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64, "attention_window": 8}

_FAMILIES = {
    "marian": (
        hf.MarianMTModel,
        hf.MarianConfig(
            **_COMMON, **_POSITIONS, decoder_vocab_size=VOCABULARY, activation_function="relu", scale_embedding=True
        ),
    ),
    "bart": (hf.BartForConditionalGeneration, hf.BartConfig(**_COMMON, **_POSITIONS)),
    "mbart": (hf.MBartForConditionalGeneration, hf.MBartConfig(**_COMMON, **_POSITIONS)),
    "m2m100": (hf.M2M100ForConditionalGeneration, hf.M2M100Config(**_COMMON, **_POSITIONS)),
    "pegasus": (hf.PegasusForConditionalGeneration, hf.PegasusConfig(**_COMMON, **_POSITIONS)),
    "t5": (hf.T5ForConditionalGeneration, hf.T5Config(**_T5)),
    "mt5": (hf.MT5ForConditionalGeneration, hf.MT5Config(**_T5)),
    "led": (hf.LEDForConditionalGeneration, hf.LEDConfig(**_COMMON, **_LED)),
}
FAMILIES = tuple(_FAMILIES)
BOTH_ATTENTIONS = [(name, kind) for name in FAMILIES for kind in ("sdpa", "eager") if (name, kind) != ("led", "sdpa")]
"""Every family with its attention implementations. LED has only its own, which counts as eager."""


def build(family: str, attention: str | None = None, seed: int = 0) -> hf.PreTrainedModel:
    """A random model in eval mode with peaked attention and non-zero biases."""
    torch.manual_seed(seed)
    model_class, config = _FAMILIES[family]
    config = copy.deepcopy(config)
    if attention is not None and family != "led":
        config._attn_implementation = attention  # before building: T5's encoder and decoder copy it
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.5)
            elif "embed_positions" in name:
                continue
            elif "embed_tokens" in name or "shared" in name:
                parameter.normal_(0, 1.0 / WIDTH**0.5 if family == "marian" else 1.0)
            elif parameter.dim() == 2:
                parameter.normal_(0, 1.5 / parameter.shape[1] ** 0.5)
    return model


def ragged_batch(lengths: tuple[int, ...] = (24, 17, 9, 20, 24, 3), seed: int = 3) -> dict[str, torch.Tensor]:
    """Right-padded random sentences of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


@torch.no_grad()
def spread_gates(model, share_closed: float = 0.5, seed: int = 6, batch=None):  # type: ignore[no-untyped-def]
    """Give a model's learned gates weights that close about this share of the ragged batch's gates.

    Random projections of a random model's encodings hardly differ between tokens, so these are centred and scaled.
    """
    batch = batch or ragged_batch()
    real = batch["attention_mask"].bool()
    encoder = model.base_class.get_encoder(model)
    states = encoder(**batch, output_hidden_states=True).hidden_states
    layers = (*model.inner_layers, len(states) - 1)
    for gate, layer in zip((*model.inner_gates, model.gate), layers, strict=True):
        x = states[layer]
        rows = x[real].double()
        if gate.normalize:
            rows = torch.nn.functional.layer_norm(rows, rows.shape[-1:])
        weight = torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        score = rows @ weight
        weight *= 3.0 / score.std()
        gate.weight.copy_(weight)
        gate.bias.fill_(float(-(rows @ weight).quantile(share_closed)) - 2.398)
    return model
