"""The cost of gates: in training, between encoder layers, and as drift in low precision."""

import copy
import typing
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from l0drop.bench.random_models import Share, sharpen, transformer_base
from l0drop.bench.timing import Say, interleaved, ratio
from l0drop.core.memory import Gating
from l0drop.models.config import L0DropConfig
from l0drop.models.sparsify import sparsify
from l0drop.runs.gate_benchmark import Drift, DriftRow, EvenBatch, GateCost, LayerwiseRow, LayerwiseSpeed
from l0drop.runs.provenance import provenance


def gate_cost(rounds: int = 10, sentences: int = 16, length: int = 32, say: Say = print) -> GateCost:
    """CPU time of a training step with the gate / without it: Transformer base, the median of the ratios."""
    base = transformer_base().train()
    plain = transformer_base().train()
    plain.load_state_dict(base.state_dict())
    gated = sparsify(base, L0DropConfig(target_sparsity=0.5)).train()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 32_000, (sentences, length), generator=generator)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.flip(1).contiguous()}
    optimizers = {
        "without": torch.optim.Adam(plain.parameters(), lr=1e-5),
        "with": torch.optim.Adam(gated.parameter_groups(1e-5)),
    }

    def step(model: Any, name: str) -> None:
        output = model(**batch)
        output.loss.backward()
        optimizers[name].step()
        optimizers[name].zero_grad()
        if name == "with":
            model.steer(output.sparsity)

    say(f"{rounds} rounds of a training step with and without the gate, {sentences} × {length} tokens")
    timings = interleaved({"with": lambda: step(gated, "with"), "without": lambda: step(plain, "without")}, rounds)
    return GateCost(
        "one training step, Transformer base, fp32",
        EvenBatch(sentences, length),
        ratio(timings, "with", "without"),
        timings,
        provenance(),
    )


def layerwise_encoder(
    keep: tuple[float, ...] = (1.0, 0.7, 0.5, 0.3),
    rounds: int = 7,
    sentences: int = 8,
    length: int = 256,
    say: Say = print,
) -> LayerwiseSpeed:
    """Encoder time of the layer-wise variant with gating `mask`, rows removed and rows masked.

    `keep`: shares of rows kept after the first layer.
    """
    model = sparsify(transformer_base(dropout=0.0), L0DropConfig(gating="mask", layerwise=True)).eval()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 32_000, (sentences, length), generator=generator)
    rows = []
    for share in keep:
        model.inner_gates[0] = Share(share)

        @torch.no_grad()
        def encode(dense: bool) -> None:
            with model.dial(dense=dense):
                model.get_encoder()(input_ids=ids)

        say(f"{rounds} rounds, {share:.0%} of the rows kept after the first of six layers")
        timings = interleaved({"removed": lambda: encode(False), "masked": lambda: encode(True)}, rounds)
        rows.append(
            LayerwiseRow(
                kept=share,
                cpu_seconds_removed=timings["removed"].median.cpu,
                cpu_seconds_masked=timings["masked"].median.cpu,
                ratio_cpu=ratio(timings, "removed", "masked"),
            )
        )
    what = "encoder of the layer-wise variant, Transformer base, fp32"
    return LayerwiseSpeed(what, EvenBatch(sentences, length), rows, provenance())


@torch.no_grad()
def drift(sentences: int = 8, length: int = 96, keep: float = 0.5, say: Say = print) -> Drift:
    """How far low precision moves the logits: short from dense, and dense from float32.

    Distances are means of absolute differences / the mean absolute logit in float32.
    """
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 1_000, (sentences, length), generator=generator)
    lengths = torch.linspace(length // 4, length, sentences).long()
    mask = (torch.arange(length) < lengths[:, None]).long()
    batch = {"input_ids": ids * mask, "attention_mask": mask, "labels": ids[:, :24].contiguous()}
    builders: dict[str, Callable[[], Any]] = {
        "Marian": lambda: transformer_base(1_000),
        "BART": lambda: hf.BartForConditionalGeneration(
            hf.BartConfig(vocab_size=1_000, d_model=512, encoder_layers=6, decoder_layers=6, pad_token_id=0)
        ),
        "T5": lambda: hf.T5ForConditionalGeneration(
            hf.T5Config.from_dict({"vocab_size": 1_000, "decoder_start_token_id": 0})
        ),
    }
    rows = []
    for family, build in builders.items():
        torch.manual_seed(0)
        base = build().eval()
        # T5 does not scale attention by the square root of the width, so its attention is peaked already
        if family != "T5":
            sharpen(base)
        for gating in typing.get_args(Gating):
            for attention in ("sdpa", "eager"):
                reference = None
                for dtype in (torch.float32, torch.bfloat16, torch.float16):
                    model = sparsify(copy.deepcopy(base).to(dtype), L0DropConfig(gating=gating))
                    model.set_attn_implementation(attention)
                    model.gate = Share(keep)
                    short, dense = (_logits(model, batch, dense=dense) for dense in (False, True))
                    reference = dense if reference is None else reference
                    scale = reference.abs().mean()
                    rows.append(
                        DriftRow(
                            family,
                            gating,
                            attention,
                            dtype=str(dtype).removeprefix("torch."),
                            short_against_dense=float((short - dense).abs().mean() / scale),
                            dense_against_float32=float((dense - reference).abs().mean() / scale),
                        )
                    )
            say(f"{family}, gating {gating}")
    return Drift("drift of logits in low precision", keep, rows, provenance())


def _logits(model: Any, batch: dict[str, Tensor], dense: bool) -> Tensor:
    with model.dial(dense=dense):
        return model(**batch).logits.float()
