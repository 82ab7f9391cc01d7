"""The share of the decoder's time in cross-attention, the most that a short memory can save."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from l0drop.data.batches import collate
from l0drop.decoding.corpus import encoder_inputs
from l0drop.models.entmax import CROSS_ATTENTION
from l0drop.models.modeling import L0DropModel
from l0drop.runs.analysis import CrossTime, DecoderTime
from l0drop.study.analysis.material import Material

ROUNDS = 3
SENTENCES = 32


class ModuleTimer:
    """Wall seconds spent inside modules; on a GPU, until its work is done."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds, self._started = device, 0.0, 0.0

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def start(self, *_: Any) -> None:
        self._started = self._now()

    def stop(self, *_: Any) -> None:
        self.seconds += self._now() - self._started


@contextmanager
def timed(modules: list[nn.Module], device: torch.device) -> Iterator[ModuleTimer]:
    """Time every call of these modules; none may contain another."""
    watch = ModuleTimer(device)
    with ExitStack() as hooks:
        for module in modules:
            hooks.callback(module.register_forward_pre_hook(watch.start).remove)
            hooks.callback(module.register_forward_hook(watch.stop).remove)
        yield watch


@torch.no_grad()
def decoder_time(models: dict[str, Any], material: Material) -> DecoderTime:
    """Share of the decoder's time (embeddings and layers, without the output layer) that cross-attention takes, while
    the first sentences are decoded as one batch; medians over rounds.

    A gated model is timed on the short and on the dense memory.
    """
    examples = [material.corpus[i] for i in range(min(SENTENCES, len(material)))]
    batch = collate(examples, material.pad_id)
    systems: dict[str, Callable[[], tuple[float, float]]] = {}
    for name, model in models.items():
        gated = isinstance(model, L0DropModel)
        for dense in (True, False) if gated else (True,):
            key = f"{name}, {'dense' if dense else 'short'}" if gated else name
            systems[key] = _decoding(model, batch, material, dense)
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
    for number in range(ROUNDS + 1):
        for name, decode in systems.items():
            seconds = decode()
            if number:  # the first round warms up
                rounds[name].append(seconds)
    return DecoderTime(
        what="share of the decoder's wall time (without the output layer) spent in cross-attention, Hugging Face "
        "generate, median over rounds",
        sentences=len(examples),
        beams=material.evaluate.beams,
        rounds=ROUNDS,
        systems={
            name: CrossTime(
                share=statistics.median(cross / whole for cross, whole in got),
                cross_attention_seconds=statistics.median(cross for cross, _ in got),
                decoder_seconds=statistics.median(whole for _, whole in got),
            )
            for name, got in rounds.items()
        },
    )


def _decoding(model: Any, batch: dict[str, Any], material: Material, dense: bool) -> Callable[[], tuple[float, float]]:
    gated = isinstance(model, L0DropModel)
    inputs = encoder_inputs(batch, model.device, gated)
    decoder = model.get_decoder()
    crossing = [module for name, module in decoder.named_modules() if name.endswith(CROSS_ATTENTION)]

    def decode() -> tuple[float, float]:
        dial = model.dial(dense=dense) if gated else nullcontext()
        with dial, timed([decoder], model.device) as whole, timed(crossing, model.device) as cross:
            model.generate(**inputs, **material.generation)
        return cross.seconds, whole.seconds

    return decode
