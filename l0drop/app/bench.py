"""`l0drop bench`: speed measurements on this machine, as tables, and as JSON with everything needed to repeat them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from l0drop.app.command import Command, Group
from l0drop.app.numbers import listed
from l0drop.app.options import given, use_threads
from l0drop.app.terminal import console, log

if TYPE_CHECKING:
    from collections.abc import Callable

    from l0drop.runs.gpu_benchmark import GpuDecodeBenchmark
    from l0drop.runs.json_file import JsonFile
    from l0drop.runs.provenance import Provenance
    from l0drop.runs.table import Table

bench = typer.Typer(cls=Group, no_args_is_help=True, help="Measure speed on this machine.")

Rounds = Annotated[int, typer.Option(help="Rounds; the systems take turns.", min=1)]
Threads = Annotated[int, typer.Option(help="CPU threads.", min=1, max=1024)]
Output = Annotated[Path | None, typer.Option("--json", help="Write the result to this JSON file.")]


def _print(titled: "tuple[str, Table]") -> None:
    from l0drop.runs.table import for_terminal

    title, table = titled
    console.print(for_terminal(table, title, compact=True))


def _require_cuda(otherwise: str = "") -> None:
    """Raise ValueError without a GPU."""
    import torch

    if not torch.cuda.is_available():
        raise ValueError(f"device: torch finds no CUDA GPU{otherwise}")


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
    threads: Threads = 1,
    output: Output = None,
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

    result = gate_cost(rounds or 10, progress=log.print)
    _print(gate_cost_table(result))
    _finish(result, result.made_by, output)


def _train_on_gpu(rounds: int | None, output: Path | None) -> None:
    from l0drop.bench.training import Benchmark, Size
    from l0drop.report.benchmark import training_speed_table

    _require_cuda("; --device cpu measures the cost of the gate")
    result = Benchmark("cuda", Size() if rounds is None else Size(rounds=rounds)).run(progress=log.print)
    _print(training_speed_table(result))
    _finish(result, result.made_by, output)


@bench.command(cls=Command)
def layerwise(rounds: Rounds = 7, threads: Threads = 1, output: Output = None) -> None:
    """Time an encoder with gates between its layers: dropped rows removed, and masked."""
    from l0drop.bench.gates import layerwise_encoder
    from l0drop.report.benchmark import layerwise_table

    use_threads(threads)
    result = layerwise_encoder(rounds=rounds, progress=log.print)
    _print(layerwise_table(result))
    _finish(result, result.made_by, output)


@bench.command(cls=Command)
def drift(threads: Threads = 1, output: Output = None) -> None:
    """Compare logits in low precision: short memory with dense memory, and dense memory with float32."""
    from l0drop.bench.gates import drift as measure
    from l0drop.report.benchmark import drift_table

    use_threads(threads)
    result = measure(progress=log.print)
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
    threads: Threads = 1,
    output: Output = None,
) -> None:
    """Time decoding with our engine, Hugging Face's generate and CTranslate2, on the short and on the dense memory.

    With MODEL, decode lines of text or clips of audio; without, a batch of a given shape on a Transformer base or a
    Whisper with random weights.
    """
    names = None if systems is None else tuple(name.strip() for name in systems.split(","))
    if device == "cuda":
        speech = {"audio": audio, "rival": rival, "language": language}
        for name in given(**speech):
            raise ValueError(f"`{name}`: not measured on a GPU")
        sizes = given(batch=batch, source=source, target=target, dropped=dropped)
        limits = given(sentences=sentences, max_new_tokens=max_new_tokens)
        if model is not None or input_ is not None:
            for name in (*sizes, *given(shape=shape)):
                raise ValueError(f"`{name}`: is for random weights; a model decodes text of natural length")
            turns: dict[str, Any] = {
                "rounds": rounds, "slow_rounds": slow_rounds, **given(alone=alone, baseline=baseline),
            }  # fmt: skip
            _decode_text_on_gpu(model, input_, {**given(beams=beams), **limits}, names, turns, output)
            return
        for name in (*limits, *given(alone=alone, baseline=baseline)):
            raise ValueError(f"`{name}`: needs a model folder")
        shapes = [name.strip() for name in (shape or "gpu").split(",")]
        if all(name.startswith("whisper") for name in shapes):
            _decode_whispers_on_gpu(shapes, sizes, beams, names, rounds, slow_rounds, output)
        else:
            _decode_shapes_on_gpu(shapes, {**sizes, **given(beams=beams)}, names, rounds, slow_rounds, output)
        return
    if device != "cpu":
        raise ValueError(f"device: expected cpu or cuda, got {device!r}")
    if alone is not None:
        raise ValueError("`alone`: is for a GPU; on a CPU, every line is also decoded alone")
    from l0drop.bench.decoding import decode_benchmark
    from l0drop.bench.workloads import chosen_workloads
    from l0drop.report.benchmark import decode_table, sparsity_alone, speed_up_table
    from l0drop.runs.benchmark import DecodeBenchmarks

    workloads = chosen_workloads(
        model, input_, None if shape is None else [name.strip() for name in shape.split(",")],
        beams=beams or 4,
        sizes=given(batch=batch, source=source, target=target, dropped=dropped),
        limits=given(sentences=sentences, max_new_tokens=max_new_tokens), audio=audio,
        speech=given(baseline=baseline, rival=rival, language=language),
    )  # fmt: skip
    results = {}
    for name, workload in workloads.items():
        results[name] = decode_benchmark(workload, names, rounds, slow_rounds, threads, progress=log.print)
        _print(decode_table(results[name]))
    for name, found in results.items():
        if said := sparsity_alone(found):
            console.print(f"{f'{name}: ' if len(results) > 1 else ''}{said}", highlight=False)
    _print(speed_up_table(results))
    first = next(iter(results.values()))
    _finish(first if len(results) == 1 else DecodeBenchmarks(results, first.made_by), first.made_by, output)


def _decode_shapes_on_gpu(
    names: list[str],
    sizes: dict[str, Any],
    systems: tuple[str, ...] | None,
    rounds: int,
    slow_rounds: int,
    output: Path | None,
) -> None:
    from l0drop.bench.gpu_decoding import Setup, gpu_decode_benchmark
    from l0drop.bench.workloads import chosen_gpu_shapes
    from l0drop.report.gpu_benchmark import check_table, ratio_table

    search = {name: sizes.pop(name) for name in ("beams",) if name in sizes}
    shapes = chosen_gpu_shapes(names, sizes)
    _require_cuda()
    show_shapes = _shown_and_written(output)

    def show(result: "GpuDecodeBenchmark") -> None:
        if not result.shapes and result.check is not None:
            _print(check_table(result.check))
        show_shapes(result)

    setup = Setup(rounds=rounds, slow_rounds=slow_rounds, **search)
    result = gpu_decode_benchmark(shapes, systems, setup, progress=log.print, save=show)
    _print(ratio_table(result))
    console.print(f"A large copy moves {result.bytes_per_second / 1e12:.2f} TB/s.", highlight=False)
    _finish(result, result.made_by, output)


def _decode_whispers_on_gpu(
    names: list[str],
    sizes: dict[str, Any],
    beams: int | None,
    systems: tuple[str, ...] | None,
    rounds: int,
    slow_rounds: int,
    output: Path | None,
) -> None:
    from l0drop.bench.gpu_race import Conditions
    from l0drop.bench.gpu_speech import BEAMS, chosen_whispers, gpu_speech_benchmark
    from l0drop.report.gpu_benchmark import ratio_table

    workloads = chosen_whispers(names, sizes, BEAMS if beams is None else (beams,))
    _require_cuda()
    conditions = Conditions(rounds=rounds, slow_rounds=slow_rounds)
    show = _shown_and_written(output)
    result = gpu_speech_benchmark(workloads, systems, conditions, progress=log.print, save=show)
    _print(ratio_table(result))
    console.print(f"A large copy moves {result.bytes_per_second / 1e12:.2f} TB/s.", highlight=False)
    _finish(result, result.made_by, output)


def _shown_and_written(output: Path | None) -> "Callable[[GpuDecodeBenchmark], None]":
    """A function that prints the shapes of a result that it has not printed before, and writes the result."""
    from l0drop.report.gpu_benchmark import shape_table

    shown = 0

    def show(result: "GpuDecodeBenchmark") -> None:
        nonlocal shown
        for name, found in list(result.shapes.items())[shown:]:
            _print(shape_table(name, found, result.dtype))
        shown = len(result.shapes)
        if output is not None:
            result.write(output)

    return show


def _decode_text_on_gpu(
    model: str | None,
    file: Path | None,
    limits: dict[str, Any],
    systems: tuple[str, ...] | None,
    turns: dict[str, Any],
    output: Path | None,
) -> None:
    from l0drop.bench.gpu_text import gpu_text_benchmark
    from l0drop.bench.workloads import Text
    from l0drop.report.gpu_benchmark import text_table

    if model is None:
        raise ValueError("`input`: needs a model folder")
    if file is None:
        raise ValueError("`input`: missing; name a text file to decode")
    workload = Text(model, file, **limits)
    _require_cuda()
    result = gpu_text_benchmark(workload, systems, **turns, progress=log.print)
    _print(text_table(result))
    _finish(result, result.made_by, output)


@bench.command(cls=Command)
def precision(
    model: Annotated[str, typer.Argument(help="A run or model folder, or a name on the hub.")],
    input_: Annotated[Path, typer.Option("--input", help="Text for the model to decode.")],
    reference: Annotated[Path, typer.Option(help="Its references, line by line.")],
    dtypes: Annotated[
        str, typer.Option(help="Types of numbers; the others are compared with the first.")
    ] = "float32,bfloat16,float16",
    sentences: Annotated[int, typer.Option(help="Lines to decode.", min=1)] = 1000,
    alone: Annotated[int, typer.Option(help="Lines that are also decoded one at a time.", min=0)] = 50,
    beams: Annotated[int | None, typer.Option(help="Beams. Default: the run's.", min=1)] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest output. Default: the run's.", min=1)] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Threads = 1,
    output: Output = None,
) -> None:
    """Do a trained model's outputs change in low precision, and with the batch they are decoded in?"""
    from l0drop.bench.precision import PrecisionText
    from l0drop.bench.precision import precision as measure
    from l0drop.report.precision import precision_table
    from l0drop.runs.precision import Precision

    if device not in ("cpu", "cuda"):
        raise ValueError(f"device: expected cpu or cuda, got {device!r}")
    generation = given(num_beams=beams, max_new_tokens=max_new_tokens)
    text = PrecisionText(model, input_, reference, sentences, alone, generation)
    if device == "cuda":
        _require_cuda()
    use_threads(threads)

    def save(result: Precision) -> None:
        if output is not None:
            result.write(output)

    names = [name.strip() for name in dtypes.split(",")]
    result = measure(text, names, device=device, progress=log.print, save=save)
    _print(precision_table(result))
    _finish(result, result.made_by, output)


@bench.command(cls=Command)
def dial(
    run: Annotated[Path, typer.Argument(help="A run folder, preferably trained with train.elastic.")],
    keep: Annotated[str, typer.Option(help="Shares to keep: 0.3,0.5,0.7 or 0.1:1:0.1", metavar="VALUES")],
    threads: Threads = 1,
    output: Output = None,
) -> None:
    """Measure quality and decoding time of one model at several settings of the dial, on its test set."""
    from l0drop.report.benchmark import dial_table
    from l0drop.study.dial import dial_curve

    use_threads(threads)
    curve = dial_curve(run, listed(keep, "--keep"), progress=log.print)
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
    threads: Threads = 1,
    output: Output = None,
) -> None:
    """Should I use it? Predict the speed-up of a short memory on this machine, in about a minute, without training.

    Without MODEL, for a Transformer base with random weights.
    """
    from l0drop.bench.predict import NOTES, Question
    from l0drop.bench.predict import predict as measure
    from l0drop.report.benchmark import check_table, prediction_table

    if device not in ("cpu", "cuda"):
        raise ValueError(f"device: expected cpu or cuda, got {device!r}")
    question = Question(model, sparsity, input_, beams, target, source, device)
    if device == "cuda":
        _require_cuda()
    use_threads(threads)
    result = measure(question, rounds, check, progress=log.print)
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
