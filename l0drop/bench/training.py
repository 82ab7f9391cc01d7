"""Training on a GPU: our trainer and Hugging Face's, on the same ragged batches of a synthetic corpus.

Token counts are of real tokens, source and target. Model FLOPs are those of the matrix products, forward and backward,
each counted once: for real tokens (`mfu`), and for all computed positions, padding included (`mfu_of_positions`). Both
are shares of the rate that a large matrix product reaches in the same run.
"""

import copy
import gc
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers as hf

from l0drop.bench.random_models import transformer_base
from l0drop.bench.timing import Say
from l0drop.data.batches import Step, TokenBatches, collate
from l0drop.data.corpus import TokenizedCorpus
from l0drop.models.attention_kernels import without_cudnn_attention
from l0drop.models.config import L0DropConfig
from l0drop.models.quiet import quiet_libraries
from l0drop.models.sparsify import sparsify
from l0drop.recipe import Recipe, parse_recipe
from l0drop.runs.provenance import provenance
from l0drop.runs.training_benchmark import LossCurves, TrainingRound, TrainingSpeed
from l0drop.training.fast import MULTIPLE
from l0drop.training.ragged import any_shape
from l0drop.training.trainer import L0DropTrainer

EOS, PAD, SEED, SMOOTHING = 2, 0, 1, 0.1
SPARSE = {"gating": "zero", "target_sparsity": 0.5}
THEIRS, THEIRS_OFF = "Hugging Face's Trainer", "Hugging Face's Trainer, cuDNN attention off"
OURS, OURS_GATED = "l0drop", "l0drop, with gate"


@dataclass(frozen=True)
class Size:
    """The model and the number of steps: `before` untimed steps, then `steps` timed ones.

    Our trainer first runs `epochs_before` whole epochs untimed: in the first it meets the batch shapes, in the second
    it captures them. `slow_before` and `slow_steps` are for Hugging Face's Trainer with its defaults.
    """

    model: dict[str, Any] = field(default_factory=dict)
    vocabulary: int = 32_000
    sentences: int = 40_000
    batch_tokens: int = 25_000
    precision: str = "bf16"
    before: int = 10
    steps: int = 50
    epochs_before: int = 2
    slow_before: int = 3
    slow_steps: int = 10
    rounds: int = 2
    curve_steps: int = 90


BASE = Size()


class Benchmark:
    """The corpus, batches and model that all systems share."""

    def __init__(self, device: str = "cuda", size: Size = BASE) -> None:
        quiet_libraries()
        self.device, self.size = device, size
        self.corpus = synthetic_corpus(size)
        self.base = transformer_base(size.vocabulary, **size.model)
        batches = TokenBatches(
            self.corpus.source_lengths, self.corpus.target_lengths, size.batch_tokens, seed=SEED, multiple=MULTIPLE
        )
        self.start = max(size.before, size.epochs_before * sum(1 for _ in batches.steps(0)))
        self.plan: list[Step] = list(islice(batches.steps_from(0), self.start + size.steps))
        self.matrix_rate = matrix_rate(device)
        self._collated: dict[int, dict[str, torch.Tensor]] = {}

    def run(self, say: Say = print) -> TrainingSpeed:
        """The speed of every system, the cost of the gate, and loss curves of the fast and the plain path."""
        size = self.size
        rounds: dict[str, list[TrainingRound]] = {name: [] for name in (THEIRS, THEIRS_OFF, OURS, OURS_GATED)}

        def logged(name: str, result: TrainingRound) -> TrainingRound:
            speed = f"{result.milliseconds_per_step:.1f} ms/step, {result.tokens_per_second:,.0f} tokens/s"
            say(f"{name}: {speed}, MFU {result.mfu:.1%}, {result.mfu_of_positions:.1%} of positions")
            return result

        for _ in range(size.rounds):
            with without_cudnn_attention():
                rounds[THEIRS_OFF].append(logged(THEIRS_OFF, self.theirs(size.before, size.steps)))
            for name in (OURS, OURS_GATED):
                rounds[name].append(logged(name, self.ours(gated=name == OURS_GATED)))
        rounds[THEIRS].append(logged(THEIRS, self.theirs(size.slow_before, size.slow_steps)))
        speeds = {name: statistics.median(r.tokens_per_second for r in results) for name, results in rounds.items()}
        say("loss curves")
        return TrainingSpeed(
            what="training, Transformer base" if not size.model else f"training, {size.model}",
            precision=size.precision,
            batch_tokens=size.batch_tokens,
            label_smoothing=SMOOTHING,
            matrix_tflops=self.matrix_rate / 1e12,
            tokens_per_second=speeds,
            times_theirs=speeds[OURS] / speeds[THEIRS],
            times_theirs_with_cudnn_attention_off=speeds[OURS] / speeds[THEIRS_OFF],
            mfu=statistics.median(r.mfu for r in rounds[OURS]),
            mfu_of_positions=statistics.median(r.mfu_of_positions for r in rounds[OURS]),
            gate_overhead=speeds[OURS] / speeds[OURS_GATED] - 1,
            rounds=rounds,
            curves=self.curves(),
            made_by=provenance(self.device),
        )

    # --- systems -------------------------------------------------------------------------------------------------

    def theirs(self, before: int, steps: int) -> TrainingRound:
        """Hugging Face's Trainer with its defaults, except for precision and label smoothing.

        Its batches are prepared in advance and come in order.
        """
        model = copy.deepcopy(self.base)
        wanted = range(self.start - before, self.start + steps)
        for index in wanted:
            if index not in self._collated:
                self._collated[index] = self._batch(self.plan[index], model)
        batches = [self._collated[index] for index in wanted]
        timed = TimedSteps(before, steps)
        with tempfile.TemporaryDirectory() as folder:
            arguments = hf.TrainingArguments(
                folder,
                max_steps=10**6,
                per_device_train_batch_size=1,
                train_sampling_strategy="sequential",
                bf16=self.size.precision == "bf16",
                label_smoothing_factor=SMOOTHING,
                save_strategy="no",
                report_to=[],
                remove_unused_columns=False,
                disable_tqdm=True,
                use_cpu=self.device == "cpu",
            )
            trainer = hf.Trainer(
                model, arguments, data_collator=_only, train_dataset=batches, callbacks=[timed]
            )  # fmt: skip
            trainer.remove_callback(hf.PrinterCallback)
            trainer.train()
        del trainer, model
        return self._result(timed, padded=False)

    def ours(self, *, gated: bool = False) -> TrainingRound:
        """Our trainer, as a recipe runs it."""
        timed = TimedSteps(self.start, self.size.steps)
        self._train(timed, gated=gated)
        return self._result(timed, padded=True)

    def curves(self) -> LossCurves:
        """Cross-entropy of a gated model by step: on the fast path, and on the plain path with two dropout seeds.

        Over the second half of the steps, `difference` is the mean of |fast - plain|, and `noise` the mean distance of
        the two plain runs.
        """
        log_every = max(1, self.size.curve_steps // 30)
        plain = {"fast": False, "compile": False}
        runs = {"fast": (SEED, {}), "plain": (SEED, plain), "plain, other dropout": (SEED + 1, plain)}
        found: dict[str, list[float]] = {}
        for name, (seed, settings) in runs.items():
            curve = Curve(seed, self.size.curve_steps)
            with any_shape(self.device):
                self._train(curve, gated=True, log_every=log_every, **settings)
            found[name] = curve.values
        half = len(found["plain"]) // 2
        late = {name: np.array(values[half:]) for name, values in found.items()}
        return LossCurves(
            log_every,
            found,
            difference=float(np.abs(late["fast"] - late["plain"]).mean()),
            noise=float(np.abs(late["plain, other dropout"] - late["plain"]).mean()),
        )

    def _train(self, callback: hf.TrainerCallback, *, gated: bool, **settings: Any) -> None:
        model: Any = copy.deepcopy(self.base)
        if gated:
            model = sparsify(model, L0DropConfig(**SPARSE))  # type: ignore[arg-type]
        tokenizers: Any = SimpleNamespace(source=SimpleNamespace(pad_token_id=PAD))
        with tempfile.TemporaryDirectory() as folder:
            L0DropTrainer(
                self._recipe(gated, settings),
                model,
                {"train": self.corpus, "valid": self.corpus},
                [],
                tokenizers,
                Path(folder),
                callbacks=[callback],
            ).train()

    def _recipe(self, gated: bool, settings: dict[str, Any]) -> Recipe:
        text = {
            "toy": "translation",
            "pairs": 1,
            "split": "train",
        }  # a placeholder: the trainer gets the synthetic corpus
        train = {
            "steps": 10**6, "save_every": 10**6, "eval_every": 10**6, "log_every": 10**6, "warmup": 200,
            "batch_tokens": self.size.batch_tokens, "precision": self.size.precision, "label_smoothing": SMOOTHING,
            "compile": self.device.startswith("cuda"), "length_multiple": MULTIPLE,
        }  # fmt: skip
        values = {
            "name": "benchmark",
            "seed": SEED,
            "data": {"train": text, "valid": {**text, "split": "valid"}},
            "tokenizer": {"vocab_size": self.size.vocabulary},
            "model": {"transformer": {}},
            "l0drop": SPARSE if gated else None,
            "train": {**train, **settings},
        }
        return parse_recipe(values, "benchmark")

    def _batch(self, step: Step, model: Any) -> dict[str, torch.Tensor]:
        batch = collate([self.corpus[int(i)] for i in step.mine[0]], PAD)
        shifted = model.prepare_decoder_input_ids_from_labels(batch["labels"])
        return {**{n: batch[n] for n in ("input_ids", "attention_mask", "labels")}, "decoder_input_ids": shifted}

    def _result(self, timed: "TimedSteps", *, padded: bool) -> TrainingRound:
        """Speed and FLOPs of the timed steps. padded: batches are padded to the lengths in the plan."""
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        tokens = flops = of_positions = 0
        for step in self.plan[self.start : self.start + timed.steps]:
            lengths = [side[step.mine[0]] for side in (self.corpus.source_lengths, self.corpus.target_lengths)]  # type: ignore[index]
            tokens += step.source_tokens + step.target_tokens
            flops += training_flops(self.base.config, *lengths)
            positions = (np.full_like(side, step.length if padded else side.max()) for side in lengths)
            of_positions += training_flops(self.base.config, *positions)
        return TrainingRound(
            tokens_per_second=tokens / timed.seconds,
            tokens_per_step=tokens / timed.steps,
            milliseconds_per_step=1e3 * timed.seconds / timed.steps,
            mfu=flops / timed.seconds / self.matrix_rate,
            mfu_of_positions=of_positions / timed.seconds / self.matrix_rate,
            steps=timed.steps,
            seconds_before=timed.seconds_before,
            peak_memory_gib=timed.peak_memory / 2**30,
        )


class TimedSteps(hf.TrainerCallback):
    """Stops training after `before` + `steps` steps and times the last `steps`."""

    def __init__(self, before: int, steps: int) -> None:
        self.before, self.steps = before, steps
        self.seconds_before = self.seconds = 0.0
        self.peak_memory = 0
        self._started = self._now()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.before:
            self.seconds_before = self._now() - self._started
            self._started = self._now()
        elif state.global_step == self.before + self.steps:
            self.seconds = self._now() - self._started
            self.peak_memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
            control.should_training_stop = True

    @staticmethod
    def _now() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


class Curve(hf.TrainerCallback):
    """Records the logged cross-entropy over `steps` steps; `seed` is the seed of dropout."""

    def __init__(self, seed: int, steps: int) -> None:
        self.seed, self.steps = seed, steps
        self.values: list[float] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        torch.manual_seed(self.seed)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "cross_entropy" in logs:
            self.values.append(logs["cross_entropy"])
            control.should_training_stop = state.global_step >= self.steps


def synthetic_corpus(size: Size) -> TokenizedCorpus:
    """Pairs with the lengths of a translation corpus: words follow Zipf's law, and each has one translation."""
    draw = np.random.default_rng(SEED)
    source_lengths = np.clip(draw.lognormal(3.2, 0.6, size.sentences), 3, 200).astype(np.int64)
    target_lengths = np.clip(source_lengths * draw.lognormal(0.05, 0.15, size.sentences), 3, 200).astype(np.int64)
    words = size.vocabulary - 3
    share = 1 / np.arange(1, words + 1)
    source = draw.choice(words, int(source_lengths.sum()), p=share / share.sum())
    source_offsets, target_offsets = (np.concatenate([[0], side.cumsum()]) for side in (source_lengths, target_lengths))
    # a target runs through its source once, stretched or compressed to its length
    sentence = np.repeat(np.arange(size.sentences), target_lengths)
    position = np.arange(len(sentence)) - target_offsets[sentence]
    position = position * source_lengths[sentence] // target_lengths[sentence]
    target = draw.permutation(words)[source[source_offsets[sentence] + position]]
    columns = {"source.offsets": source_offsets, "target.offsets": target_offsets}
    for name, ids, offsets in (("source", source, source_offsets), ("target", target, target_offsets)):
        columns[f"{name}.ids"] = ids + 3
        columns[f"{name}.ids"][offsets[1:] - 1] = EOS
    return TokenizedCorpus(Path(), {}, source_lengths, target_lengths, columns)


def training_flops(config: Any, source_lengths: np.ndarray, target_lengths: np.ndarray) -> int:
    """FLOPs of the matrix products of a step, forward and backward; causal attention counts half."""
    n, t, d = source_lengths.sum(), target_lengths.sum(), config.d_model
    encoder = config.encoder_layers * (
        n * (4 * d * d + 2 * d * config.encoder_ffn_dim) + 2 * d * (source_lengths**2).sum()
    )
    own = t * (4 * d * d + 2 * d * config.decoder_ffn_dim) + d * (target_lengths**2).sum()
    cross = (2 * t + 2 * n) * d * d + 2 * d * (source_lengths * target_lengths).sum()
    products = encoder + config.decoder_layers * (own + cross) + t * d * config.vocab_size
    return int(6 * products)


def matrix_rate(device: str, rounds: int = 20) -> float:
    """FLOP/s of a large matrix product: bfloat16 on a GPU, float32 on a CPU."""
    on_gpu = device == "cuda"
    size, dtype = (8192, torch.bfloat16) if on_gpu else (512, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds = []
    for _ in range(rounds):
        if on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        a @ b
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(seconds)


def _only(batches: list[Any]) -> Any:
    return batches[0]
