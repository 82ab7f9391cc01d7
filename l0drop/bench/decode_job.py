"""What `l0drop bench decode` measures: on a CPU or a GPU; text, audio, or batches on random weights.

job = DecodeJob(shapes=("cnndm",), rounds=3)
job.run(show=lambda name, result: print(name))
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l0drop.bench import decoding, gpu_decoding, gpu_speech, gpu_text
from l0drop.bench.gpu_race import Conditions
from l0drop.bench.timing import require_cuda
from l0drop.bench.workloads import TextFile, chosen_gpu_shapes, chosen_workloads
from l0drop.runs.benchmark import DecodeBenchmark, DecodeBenchmarks
from l0drop.runs.gpu_benchmark import GpuDecodeBenchmark, GpuTextBenchmark

SIZES = ("batch", "source", "target", "dropped")
LIMITS = ("sentences", "max_new_tokens")
SPEECH = ("baseline", "rival", "language")
DecodeResults = DecodeBenchmarks | GpuDecodeBenchmark | GpuTextBenchmark
Show = Callable[[str, DecodeBenchmark | GpuDecodeBenchmark | GpuTextBenchmark], None]
"""Called on a CPU with the name and the result of each workload, on a GPU with the result so far."""


@dataclass(frozen=True, kw_only=True)
class DecodeJob:
    """A benchmark of decoding. None: the default of the workload.

    model: a run or model folder, or a name on the hub, which decodes the text of `input` or the recordings of `audio`;
    without one, batches of these shapes are decoded on random weights. baseline, rival: other models to time beside it.
    alone: lines that are also decoded one at a time, on a GPU.
    """

    model: str | None = None
    input: Path | None = None
    audio: Path | None = None
    baseline: str | None = None
    rival: str | None = None
    language: str | None = None
    sentences: int | None = None
    max_new_tokens: int | None = None
    alone: int | None = None
    shapes: tuple[str, ...] | None = None
    batch: int | None = None
    source: int | None = None
    target: int | None = None
    dropped: float | None = None
    beams: int | None = None
    systems: tuple[str, ...] | None = None
    device: str = "cpu"
    rounds: int = 5
    slow_rounds: int = 1
    threads: int = 1

    def __post_init__(self) -> None:
        if self.device == "cpu":
            self._refuse("is for a GPU; on a CPU, every line is also decoded alone", "alone")
        elif self.device != "cuda":
            raise ValueError(f"device: expected cpu or cuda, got {self.device!r}")
        else:
            self._refuse("not measured on a GPU", "audio", "rival", "language")
            if self._reads_text:
                self._refuse("is for random weights; a model decodes text of natural length", *SIZES, "shapes")
            else:
                self._refuse("needs a model folder", *LIMITS, "alone", "baseline")

    @property
    def _reads_text(self) -> bool:
        return self.model is not None or self.input is not None

    def _given(self, *names: str) -> dict[str, Any]:
        """The fields of these names that have a value."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def _refuse(self, why: str, *names: str) -> None:
        for name in self._given(*names):
            raise ValueError(f"`{'shape' if name == 'shapes' else name}`: {why}")

    def run(self, say: Callable[[str], None] = print, show: Show = lambda name, result: None) -> DecodeResults:
        """Measure; on a CPU by workload, on a GPU as one result."""
        if self.device == "cpu":
            return self._on_cpu(say, show)
        if self._reads_text:
            return self._text_on_gpu(say, show)
        return self._shapes_on_gpu(say, show)

    def _on_cpu(self, say: Callable[[str], None], show: Show) -> DecodeBenchmarks:
        workloads = chosen_workloads(
            self.model, self.input, self.shapes, beams=self.beams or 4, sizes=self._given(*SIZES),
            limits=self._given(*LIMITS), audio=self.audio, speech=self._given(*SPEECH),
        )  # fmt: skip
        results = {}
        for name, workload in workloads.items():
            results[name] = decoding.decode_benchmark(
                workload, self.systems, self.rounds, self.slow_rounds, self.threads, say=say
            )
            show(name, results[name])
        return DecodeBenchmarks(results, next(iter(results.values())).made_by)

    def _text_on_gpu(self, say: Callable[[str], None], show: Show) -> GpuTextBenchmark:
        if self.model is None:
            raise ValueError("`input`: needs a model folder")
        if self.input is None:
            raise ValueError("`input`: missing; name a text file to decode")
        workload = TextFile(self.model, self.input, **self._given("beams", *LIMITS))
        require_cuda()
        return gpu_text.gpu_text_benchmark(
            workload, self.systems, rounds=self.rounds, slow_rounds=self.slow_rounds,
            **self._given("alone", "baseline"), say=say, save=lambda result: show("", result),
        )  # fmt: skip

    def _shapes_on_gpu(self, say: Callable[[str], None], show: Show) -> GpuDecodeBenchmark:
        names, sizes = self.shapes or ("gpu",), self._given(*SIZES)
        turns: dict[str, Any] = {"rounds": self.rounds, "slow_rounds": self.slow_rounds}
        told: dict[str, Any] = {"say": say, "save": lambda result: show("", result)}
        if all(name.startswith("whisper") for name in names):
            beams = gpu_speech.BEAMS if self.beams is None else (self.beams,)
            workloads = gpu_speech.chosen_whispers(names, sizes, beams)
            require_cuda()
            return gpu_speech.gpu_speech_benchmark(workloads, self.systems, Conditions(**turns), **told)
        shapes = chosen_gpu_shapes(names, sizes)
        require_cuda()
        setup = gpu_decoding.Setup(**turns, **self._given("beams"))
        return gpu_decoding.gpu_decode_benchmark(shapes, self.systems, setup, **told)
