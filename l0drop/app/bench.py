"""`l0drop bench`: speed measurements on this machine, as tables, and as JSON with everything needed to repeat them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from l0drop.app.command import Command, CommandGroup
from l0drop.app.numbers import listed
from l0drop.app.options import given, use_threads
from l0drop.app.terminal import console, log

if TYPE_CHECKING:
    from l0drop.runs.benchmark import DecodeBenchmark, DecodeBenchmarks
    from l0drop.runs.gpu_benchmark import GpuDecodeBenchmark, GpuTextBenchmark
    from l0drop.runs.json_file import JsonFile
    from l0drop.runs.provenance import Provenance
    from l0drop.runs.table import Table

bench = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Measure speed on this machine.")

Rounds = Annotated[int, typer.Option(help="Rounds; the systems take turns.", min=1)]
BenchThreads = Annotated[int, typer.Option(help="CPU threads.", min=1, max=1024)]
JsonOutput = Annotated[Path | None, typer.Option("--json", help="Write the result to this JSON file.")]


def _print(titled: "tuple[str, Table]") -> None:
    from l0drop.runs.table import for_terminal

    title, table = titled
    console.print(for_terminal(table, title, compact=True))


def _finish(result: "JsonFile", made_by: "Provenance | None", output: Path | None) -> None:
    """Print the machine that a result is from, and write the result."""
    assert made_by is not None
    commit = f", commit {made_by.commit}" if made_by.commit else ""
    console.print(f"{made_by.machine}, torch {made_by.torch}{commit}", highlight=False)
    if output is not None:
        result.write(output)


@bench.command(cls=Command)
def train(
    device: Annotated[str, typer.Option(help="cpu: the cost of the gate; cuda: the speed of training.")] = "cpu",
    rounds: Annotated[int | None, typer.Option(help="Rounds. Default: 10 on a CPU, 2 on a GPU.", min=1)] = None,
    threads: BenchThreads = 1,
    output: JsonOutput = None,
) -> None:
    """Train a Transformer base: on a CPU with and without gate, on a GPU with our trainer and Hugging Face's."""
    use_threads(threads)
    if device == "cuda":
        _train_on_gpu(rounds, output)
        return
    if device != "cpu":
        raise ValueError(f"device: expected cpu or cuda, got {device!r}")
    from l0drop.bench.gates import gate_cost
    from l0drop.report.benchmark import gate_cost_table

    result = gate_cost(rounds or 10, say=log.print)
    _print(gate_cost_table(result))
    _finish(result, result.made_by, output)


def _train_on_gpu(rounds: int | None, output: Path | None) -> None:
    from l0drop.bench.timing import require_cuda
    from l0drop.bench.training import Benchmark, Size
    from l0drop.report.benchmark import training_speed_table

    require_cuda("; --device cpu measures the cost of the gate")
    result = Benchmark("cuda", Size() if rounds is None else Size(rounds=rounds)).run(say=log.print)
    _print(training_speed_table(result))
    _finish(result, result.made_by, output)


@bench.command(cls=Command)
def layerwise(rounds: Rounds = 7, threads: BenchThreads = 1, output: JsonOutput = None) -> None:
    """Time an encoder with gates between its layers: dropped rows removed, and masked."""
    from l0drop.bench.gates import layerwise_encoder
    from l0drop.report.benchmark import layerwise_table

    use_threads(threads)
    result = layerwise_encoder(rounds=rounds, say=log.print)
    _print(layerwise_table(result))
    _finish(result, result.made_by, output)


@bench.command(cls=Command)
def drift(threads: BenchThreads = 1, output: JsonOutput = None) -> None:
    """Compare logits in low precision: short memory with dense memory, and dense memory with float32."""
    from l0drop.bench.gates import drift as measure
    from l0drop.report.benchmark import drift_table

    use_threads(threads)
    result = measure(say=log.print)
    _print(drift_table(result))
    _finish(result, result.made_by, output)


@bench.command(cls=Command)
def decode(
    model: Annotated[str | None, typer.Argument(help="A run or model folder, or a name on the hub.")] = None,
    input_: Annotated[Path | None, typer.Option("--input", help="Text for the model to decode.")] = None,
    audio: Annotated[
        Path | None, typer.Option(help="For a Whisper: a text file with one audio file per line, up to 30 s each.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="A dense model, which CTranslate2 decodes too: a Whisper, or on a GPU one for text."),
    ] = None,
    rival: Annotated[str | None, typer.Option(help="Another sparse Whisper to time beside MODEL.")] = None,
    language: Annotated[str | None, typer.Option(help="The language of the audio, for a multilingual model.")] = None,
    sentences: Annotated[int | None, typer.Option(help="Lines or clips to decode. Default: 100.", min=1)] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest output. Default: 128.", min=1)] = None,
    alone: Annotated[
        int | None, typer.Option(help="On a GPU: lines that are also decoded one at a time. Default: 100.", min=0)
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="wikisum, cnndm, mt, whisper-tiny, whisper-small, whisper-large-v3, whisper-turbo, or several with "
            "commas. Default: cnndm, without MODEL. With --device cuda: gpu (the default, all of b1-n400, b32-n30, "
            "b10-n400, b10-n2048, b64-n2048, b256-n2048), or several of these; or whisper (all four sizes), or some of "
            "them."
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            help="Sentences in a batch. Default: the shape's, 32, or 8 clips; of a random Whisper on a GPU 32, 8, 1.",
            min=1,
        ),
    ] = None,
    source: Annotated[int | None, typer.Option(help="Source tokens. Default: the shape's.", min=1)] = None,
    target: Annotated[int | None, typer.Option(help="Tokens to produce. Default: the shape's.", min=1)] = None,
    dropped: Annotated[float | None, typer.Option(help="Share of encodings dropped. Default: the shape's.")] = None,
    beams: Annotated[
        int | None, typer.Option(help="Beams. Default: 4; of a random Whisper on a GPU 5 and 1.", min=1)
    ] = None,
    systems: Annotated[str | None, typer.Option(help="Systems to run, with commas. Default: all.")] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda: in bfloat16, by wall time.")] = "cpu",
    rounds: Rounds = 5,
    slow_rounds: Annotated[int, typer.Option(help="Rounds of Hugging Face's generate.", min=1)] = 1,
    threads: BenchThreads = 1,
    output: JsonOutput = None,
) -> None:
    """Time decoding with our engine, Hugging Face's generate and CTranslate2, on the short and on the dense memory.

    With MODEL, decode lines of text or clips of audio; without, a batch of a given shape on a Transformer base or a
    Whisper with random weights.
    """
    from l0drop.bench.decode_job import DecodeJob
    from l0drop.runs.benchmark import DecodeBenchmarks

    job = DecodeJob(
        model=model, input=input_, audio=audio, baseline=baseline, rival=rival, language=language, sentences=sentences,
        max_new_tokens=max_new_tokens, alone=alone, shapes=_names(shape), batch=batch, source=source, target=target,
        dropped=dropped, beams=beams, systems=_names(systems), device=device, rounds=rounds, slow_rounds=slow_rounds,
        threads=threads,
    )  # fmt: skip
    result = job.run(log.print, _Shown(output))
    _print_decoded(result)
    written = result.file if isinstance(result, DecodeBenchmarks) else result
    _finish(written, result.made_by, output)


def _names(text: str | None) -> tuple[str, ...] | None:
    """Names with commas between them."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


class _Shown:
    """Prints what it has not printed before of a benchmark that goes on, and writes that of a GPU."""

    def __init__(self, output: Path | None) -> None:
        self._output = output
        self._count = 0

    def __call__(self, name: str, result: "DecodeBenchmark | GpuDecodeBenchmark | GpuTextBenchmark") -> None:
        from l0drop.report.benchmark import decode_table
        from l0drop.report.gpu_benchmark import check_table, shape_table
        from l0drop.runs.benchmark import DecodeBenchmark
        from l0drop.runs.gpu_benchmark import GpuDecodeBenchmark

        if isinstance(result, DecodeBenchmark):
            _print(decode_table(result))
            return
        if isinstance(result, GpuDecodeBenchmark):
            if not result.shapes and result.check is not None:
                _print(check_table(result.check))
            for shape, found in list(result.shapes.items())[self._count :]:
                _print(shape_table(shape, found, result.dtype))
            self._count = len(result.shapes)
        if self._output is not None:
            result.write(self._output)


def _print_decoded(result: "DecodeBenchmarks | GpuDecodeBenchmark | GpuTextBenchmark") -> None:
    """Print what a finished benchmark says as a whole."""
    from l0drop.report.benchmark import sparsity_alone, speed_up_table
    from l0drop.report.gpu_benchmark import ratio_table, text_table
    from l0drop.runs.benchmark import DecodeBenchmarks
    from l0drop.runs.gpu_benchmark import GpuTextBenchmark

    if isinstance(result, DecodeBenchmarks):
        for name, found in result.shapes.items():
            if said := sparsity_alone(found):
                console.print(f"{f'{name}: ' if len(result.shapes) > 1 else ''}{said}", highlight=False)
        _print(speed_up_table(result.shapes))
    elif isinstance(result, GpuTextBenchmark):
        _print(text_table(result))
    else:
        _print(ratio_table(result))
        console.print(f"A large copy moves {result.bytes_per_second / 1e12:.2f} TB/s.", highlight=False)


@bench.command(cls=Command)
def precision(
    model: Annotated[str, typer.Argument(help="A run or model folder, or a name on the hub.")],
    input_: Annotated[Path, typer.Option("--input", help="Text for the model to decode.")],
    reference: Annotated[Path, typer.Option(help="Its references, line by line.")],
    dtypes: Annotated[
        str, typer.Option(help="Number types; the others are compared with the first.")
    ] = "float32,bfloat16,float16",
    sentences: Annotated[int, typer.Option(help="Lines to decode.", min=1)] = 1000,
    alone: Annotated[int, typer.Option(help="Lines that are also decoded one at a time.", min=0)] = 50,
    beams: Annotated[int | None, typer.Option(help="Beams. Default: the run's.", min=1)] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest output. Default: the run's.", min=1)] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: BenchThreads = 1,
    output: JsonOutput = None,
) -> None:
    """Compare a trained model's outputs between number types, and between batches and one line at a time."""
    from l0drop.bench.precision import PrecisionText
    from l0drop.bench.precision import precision as measure
    from l0drop.bench.timing import require_cuda
    from l0drop.report.precision import precision_table
    from l0drop.runs.precision import Precision

    if device not in ("cpu", "cuda"):
        raise ValueError(f"device: expected cpu or cuda, got {device!r}")
    generation = given(num_beams=beams, max_new_tokens=max_new_tokens)
    text = PrecisionText(model, input_, reference, sentences, alone, generation)
    if device == "cuda":
        require_cuda()
    use_threads(threads)

    def save(result: Precision) -> None:
        if output is not None:
            result.write(output)

    names = [name.strip() for name in dtypes.split(",")]
    result = measure(text, names, device=device, say=log.print, save=save)
    _print(precision_table(result))
    _finish(result, result.made_by, output)


@bench.command(cls=Command)
def dial(
    run: Annotated[Path, typer.Argument(help="A run folder, preferably trained with train.elastic.")],
    keep: Annotated[str, typer.Option(help="Shares to keep: 0.3,0.5,0.7 or 0.1:1:0.1", metavar="VALUES")],
    threads: BenchThreads = 1,
    output: JsonOutput = None,
) -> None:
    """Measure quality and decoding time of one model at several settings of the dial, on its test set."""
    from l0drop.report.benchmark import dial_table
    from l0drop.study.dial import dial_curve

    use_threads(threads)
    curve = dial_curve(run, listed(keep, "--keep"), say=log.print)
    _print(dial_table(curve))
    _finish(curve, curve.made_by, output)


@bench.command(cls=Command)
def predict(
    model: Annotated[str | None, typer.Argument(help="A run or model folder, or a name on the hub.")] = None,
    sparsity: Annotated[
        float | None,
        typer.Option(help="Share of encodings dropped. Default: measured on --input; 0.5 without MODEL."),
    ] = None,
    input_: Annotated[
        Path | None,
        typer.Option("--input", help="Text to measure source lengths on, and sparsity if MODEL has a gate."),
    ] = None,
    source: Annotated[
        int | None, typer.Option(help="Source tokens to answer for. Default: the mean of --input, or any.", min=1)
    ] = None,
    beams: Annotated[int, typer.Option(help="Beams.", min=1)] = 4,
    target: Annotated[int, typer.Option(help="Tokens to produce.", min=1)] = 64,
    check: Annotated[bool, typer.Option("--check", help="Measure three other shapes, and compare.")] = False,
    device: Annotated[str, typer.Option(help="cpu, or cuda: in bfloat16, by wall time.")] = "cpu",
    rounds: Rounds = 3,
    threads: BenchThreads = 1,
    output: JsonOutput = None,
) -> None:
    """Should I use it? Predict the speed-up of a short memory on this machine, in about a minute, without training.

    Without MODEL, for a Transformer base with random weights.
    """
    from l0drop.bench.predict import NOTES, Question
    from l0drop.bench.predict import predict as measure
    from l0drop.bench.timing import require_cuda
    from l0drop.report.benchmark import check_table, prediction_table

    if device not in ("cpu", "cuda"):
        raise ValueError(f"device: expected cpu or cuda, got {device!r}")
    question = Question(model, sparsity, input_, beams, target, source, device)
    if device == "cuda":
        require_cuda()
    use_threads(threads)
    result = measure(question, rounds, check, say=log.print)
    console.print(f"[bold]{result.answer}[/]", highlight=False)
    console.print(f"({NOTES['answer']}.)", highlight=False)
    clock = "float32. Times are CPU times" if device == "cpu" else "bfloat16. Times are wall times"
    console.print(
        f"Assumed: {result.sparsity:.0%} of the encodings dropped, outputs of {target} tokens, beam {beams}, "
        f"batches of {', '.join(result.pays_from)} sentences, l0drop's engine in {clock}. Not predicted: the quality "
        "of the sparse model, which takes training.",
        highlight=False,
    )
    if check:
        _print(check_table(result))
    _print(prediction_table(result))
    _finish(result, result.made_by, output)
