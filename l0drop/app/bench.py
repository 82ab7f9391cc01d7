"""`l0drop bench`: measurements on this machine, as a table, and as JSON with what it takes to repeat them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

bench = typer.Typer(no_args_is_help=True, help="Measure on this machine.")
console = Console()
log = Console(stderr=True)

Rounds = Annotated[int, typer.Option(help="Interleaved rounds.", min=1)]
Threads = Annotated[int, typer.Option(help="CPU threads.", min=1)]
Output = Annotated[Path | None, typer.Option("--json", help="Write the result, with machine and commit, to this file.")]


def _report(result: dict[str, Any], table: Table, output: Path | None) -> None:
    console.print(table)
    console.print(
        f"{result['device']}, {result['threads']} thread(s), torch {result['torch']}, commit {result['commit']}"
    )
    if output is not None:
        from l0drop.data.whole import write_whole

        write_whole(output, json.dumps(result, indent=1) + "\n")


def _start(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


@bench.command()
def train(
    device: Annotated[str, typer.Option(help="cpu, or cuda for the speed of training.")] = "cpu",
    rounds: Annotated[int | None, typer.Option(help="Interleaved rounds (10 on a CPU, 2 on a GPU).", min=1)] = None,
    threads: Threads = 1,
    output: Output = None,
) -> None:
    """Training a Transformer base: on a CPU the gate's cost, on a GPU our trainer beside Hugging Face's."""
    _start(threads)
    if device == "cuda":
        _train_on_gpu(rounds, output)
        return
    if device != "cpu":
        raise ValueError(f"device: expected cpu or cuda, got {device!r}")
    from l0drop.bench.gates import gate_cost

    result = gate_cost(rounds or 10, progress=log.print)
    table = Table(title="One training step, CPU seconds (median)")
    for column in ("system", "CPU s", "wall s"):
        table.add_column(column, justify="right")
    for name, seconds in result["seconds"].items():
        middle = len(seconds["cpu"]) // 2
        table.add_row(f"{name} gate", f"{sorted(seconds['cpu'])[middle]:.3f}", f"{sorted(seconds['wall'])[middle]:.3f}")
    table.caption = f"ratio of CPU time, median over {rounds or 10} rounds: {result['ratio_cpu']:.3f}"
    _report(result, table, output)


def _train_on_gpu(rounds: int | None, output: Path | None) -> None:
    import statistics

    import torch

    from l0drop.bench.training import Benchmark, Size

    if not torch.cuda.is_available():
        raise ValueError("device: torch sees no CUDA GPU here; --device cpu measures the gate's cost")
    result = Benchmark("cuda", Size() if rounds is None else Size(rounds=rounds)).run(progress=log.print)
    title = (
        f"Training a Transformer base, {result['precision']}, ragged batches of {result['batch_tokens']} padded tokens"
    )
    table = Table(title=title, caption_justify="left")
    table.add_column("system")
    for column in ("tokens/s", "ms/step", "MFU", "of positions", "peak GiB"):
        table.add_column(column, justify="right")
    for name, results in result["rounds"].items():
        middle = {key: statistics.median(r[key] for r in results) for key in results[0]}
        table.add_row(
            name,
            f"{middle['tokens_per_second']:,.0f}",
            f"{middle['milliseconds_per_step']:.1f}",
            f"{middle['mfu']:.1%}",
            f"{middle['mfu_of_positions']:.1%}",
            f"{middle['peak_memory_gib']:.1f}",
        )
    curves = result["curves"]
    table.caption = (
        f"{result['times_theirs_with_cudnn_attention_off']:.2f} times their tokens with cuDNN attention off, "
        f"{result['times_theirs']:.1f} times at their defaults; the gate costs {result['gate_overhead']:.1%}. "
        f"MFU against {result['matrix_tflops']:.0f} TFLOP/s of a large matrix product. Late in the loss curves fast "
        f"and plain are {curves['difference']:.4f} apart, two plain runs {curves['noise']:.4f}."
    )
    _report(result, table, output)


@bench.command()
def layerwise(rounds: Rounds = 7, threads: Threads = 1, output: Output = None) -> None:
    """The encoder with gates between its layers: rows removed against rows masked."""
    from l0drop.bench.gates import layerwise_encoder

    _start(threads)
    result = layerwise_encoder(rounds=rounds, progress=log.print)
    table = Table(title="Encoder of the layer-wise variant, CPU seconds (median)")
    for column in ("rows kept", "removed", "masked", "ratio"):
        table.add_column(column, justify="right")
    for row in result["rows"]:
        table.add_row(
            f"{row['kept']:.0%}",
            f"{row['cpu_seconds_removed']:.3f}",
            f"{row['cpu_seconds_masked']:.3f}",
            f"{row['ratio_cpu']:.2f}",
        )
    _report(result, table, output)


@bench.command()
def drift(threads: Threads = 1, output: Output = None) -> None:
    """Low precision: the short memory against the dense one, beside the dense one against float32."""
    from l0drop.bench.gates import drift as measure

    _start(threads)
    result = measure(progress=log.print)
    table = Table(title="Mean difference of logits, relative to the mean logit")
    for column in ("family", "gating", "attention", "dtype", "short - dense", "dense - float32"):
        table.add_column(column)
    for row in result["rows"]:
        table.add_row(
            row["family"], row["gating"], row["attention"], row["dtype"],
            f"{row['short_against_dense']:.1e}", f"{row['dense_against_float32']:.1e}",
        )  # fmt: skip
    _report(result, table, output)


@bench.command()
def decode(
    model: Annotated[str | None, typer.Argument(help="A run or model folder, or a name on the hub.")] = None,
    input_: Annotated[Path | None, typer.Option("--input", help="Text for the model to decode.")] = None,
    sentences: Annotated[int | None, typer.Option(help="So many lines of it (100).", min=1)] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest output (128).", min=1)] = None,
    shape: Annotated[str | None, typer.Option(help="wikisum, cnndm, mt, or some of them, on random weights.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sentences in a batch (the shape's, or 32).", min=1)] = None,
    source: Annotated[int | None, typer.Option(help="Source tokens, instead of the shape's.", min=1)] = None,
    target: Annotated[int | None, typer.Option(help="Tokens to produce, instead of the shape's.", min=1)] = None,
    dropped: Annotated[float | None, typer.Option(help="Share of encodings dropped, instead of the shape's.")] = None,
    beams: Annotated[int, typer.Option(help="Beams.", min=1)] = 4,
    systems: Annotated[str | None, typer.Option(help="Some of them, with commas (all).")] = None,
    rounds: Rounds = 5,
    slow_rounds: Annotated[int, typer.Option(help="Rounds of Hugging Face's generate.", min=1)] = 1,
    threads: Threads = 1,
    output: Output = None,
) -> None:
    """Decoding: our engine, Hugging Face's generate and CTranslate2, on the short and on the dense memory.

    Without MODEL a batch of a shape on a Transformer base with random weights (cnndm; several with commas are measured
    one after the other); with it, lines of text.
    """
    from l0drop.bench.decoding import decode_benchmark
    from l0drop.bench.peers import SYSTEMS
    from l0drop.bench.workloads import SHAPES, RandomModel, Text, Workload

    numbers: dict[str, Any] = {"batch": batch, "source": source, "target": target, "dropped": dropped}
    shaped = {name: value for name, value in numbers.items() if value is not None}
    texts = {"sentences": sentences, "max_new_tokens": max_new_tokens}
    texted = {name: value for name, value in texts.items() if value is not None}
    workloads: dict[str, Workload] = {}
    if model is None:
        if input_ is not None or texted:
            raise ValueError(f"{'input' if input_ else next(iter(texted))}: needs a model folder to decode text with")
        for name in [name.strip() for name in (shape or "cnndm").split(",")]:
            if name not in SHAPES:
                raise ValueError(f"shape: expected some of {', '.join(SHAPES)}, got {name!r}")
            workloads[name] = RandomModel(replace(SHAPES[name], **shaped), beams)
    else:
        others = [name for name, value in {**shaped, "shape": shape}.items() if value is not None and name != "batch"]
        if others:
            raise ValueError(f"{others[0]}: a model decodes text as it comes; shapes are for random weights")
        if input_ is None:
            raise ValueError("input: say which text the model shall decode")
        workloads["text"] = Text(model, input_, beams=beams, **texted, **({"batch": batch} if batch else {}))
    chosen = SYSTEMS if systems is None else tuple(name.strip() for name in systems.split(","))
    results = {}
    for name, workload in workloads.items():
        results[name] = decode_benchmark(workload, chosen, rounds, slow_rounds, threads, progress=log.print)
        if len(workloads) > 1:
            console.print(_decode_table(results[name]))
    if len(results) == 1:
        (result,) = results.values()
        _report(result, _decode_table(result), output)
    else:
        whole = {"shapes": results, **{key: results[name][key] for key in ("device", "threads", "torch", "commit")}}
        _report(whole, _ratio_table(results), output)


def _ratio_table(results: dict[str, dict[str, Any]]) -> Table:
    """A row per pair of systems, a column per shape: how many times as long one takes."""
    table = Table(title="How many times as long, CPU time", box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    found: dict[str, dict[str, float]] = {}
    for shape, result in results.items():
        table.add_column(shape, justify="right")
        for row in result["ratios"]:
            phase = "encode + decode" if row["phase"] == "end_to_end" else row["phase"]
            found.setdefault(f"{phase}: {row['system']} / {row['by']}", {})[shape] = row["times"]
    for name, times in found.items():
        table.add_row(name, *(f"{times[shape]:.2f}" if shape in times else "" for shape in results))
    return table


def _decode_table(result: dict[str, Any]) -> Table:
    """A row per system: times, how many times engine-short's, memory, and whether the tokens are right."""
    gates = result["gates"]
    title = f"{result['sentences']} sentences, beam {result['generation']['num_beams']}"
    if gates is not None:
        title += f", longest source {gates['longest_source']}, {gates['sparsity']:.1%} dropped"
    text = any("latency_ms" in system for system in result["systems"].values())
    table = Table(title=f"{title}: CPU seconds, medians", caption_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    last = ("P50 ms", "P99 ms") if text else ("peak", "K/V")
    for column in ("encode", "decode", "×", "both", "×", "sent/s", *last, "tokens"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, system in result["systems"].items():
        seconds = {phase: _brief(median["cpu"]) for phase, median in system["median"].items()}
        times = {phase: f"{ratio:.2f}" for phase, ratio in (system["times_engine_short"] or {}).items()}
        table.add_row(
            name,
            seconds["encode"],
            *(cell for phase in ("decode", "end_to_end") for cell in (seconds[phase], times.get(phase, ""))),
            _brief(system["sentences_per_second"]),
            *(_brief(system["latency_ms"]["wall"][p]) for p in ("p50", "p99") if text),
            *(_mebibytes(system["memory"][kind]) for kind in ("beyond_loaded", "cross_cache") if not text),
            _verdict(result["agreement"][name], result["sentences"]),
        )
    table.caption = (
        "×: CPU time by engine-short's. sent/s: by wall time. "
        + ("P50, P99: wall time of a sentence alone. " if text else "")
        + ("" if text else "peak: MiB beyond the loaded system; K/V: MiB of cross-attention. ")
        + "tokens: sentences that have the tokens of the reference, -. ct2 decodes without gates, over all encodings."
    )
    return table


def _mebibytes(count: int | None) -> str:
    return "" if count is None else _brief(count / 2**20)


def _brief(number: float) -> str:
    """A few digits, and all of those before the point."""
    return f"{number:.0f}" if abs(number) >= 100 else f"{number:.3g}" if abs(number) >= 0.1 else f"{number:.2g}"


def _verdict(found: dict[str, Any] | None, sentences: int) -> str:
    if found is None:
        return "-"
    ties = f"+{found['tied']} tied" if found["tied"] else ""
    verdict = f"{found['same']}{ties}/{sentences}"
    return f"[red]{verdict}[/]" if found["must_agree"] and found["different"] else verdict


@bench.command()
def dial(
    run: Annotated[Path, typer.Argument(help="A run folder, best of a recipe with train.elastic.")],
    keep: Annotated[str, typer.Option(help="Shares to keep: 0.3,0.5,0.7 or 0.1:1:0.1", metavar="VALUES")],
    threads: Threads = 1,
    output: Output = None,
) -> None:
    """One model at several settings of the dial: quality and decoding time on its test text."""
    from l0drop.study.dial import dial_curve
    from l0drop.study.sweep import listed

    _start(threads)
    result = dial_curve(run, listed(keep, "--keep"), progress=log.print)
    _report(result, _dial_table(result), output)


def _dial_table(result: dict[str, Any]) -> Table:
    """A row per setting; the caption says what scores are against, where not the text's own references."""
    name = result["rows"][0]["score"]["name"]
    table = Table(title=f"{result['run']} at several settings of the dial, {result['split']} set")
    for column in ("keep", "sparsity", name, "decoding, CPU s"):
        table.add_column(column, justify="right")
    for row in result["rows"]:
        table.add_row(
            "as trained" if row["keep"] is None else f"{row['keep']:g}",
            f"{row['sparsity']:.1%}", f"{row['score']['value']:.2f}", f"{row['cpu_seconds']:.2f}",
        )  # fmt: skip
    against = f"scores are against {escape(result['references'])}; " if "references" in result else ""
    table.caption = against + result["rows"][0]["score"]["signature"]
    return table


@bench.command()
def predict(
    model: Annotated[str | None, typer.Argument(help="A run or model folder, or a name on the hub.")] = None,
    sparsity: Annotated[float | None, typer.Option(help="Share of encodings dropped (0.5 on random weights).")] = None,
    input_: Annotated[Path | None, typer.Option("--input", help="Text to measure on what the model drops.")] = None,
    beams: Annotated[int, typer.Option(help="Beams.", min=1)] = 4,
    target: Annotated[int, typer.Option(help="Tokens to produce.", min=1)] = 64,
    check: Annotated[bool, typer.Option("--check", help="Measure three other shapes, and compare.")] = False,
    rounds: Rounds = 3,
    threads: Threads = 1,
    output: Output = None,
) -> None:
    """From which source length on the short memory pays on this machine, and how much, from a few measured points.

    Without MODEL for a Transformer base with random weights.
    """
    from l0drop.bench.predict import PAYS, Question
    from l0drop.bench.predict import predict as measure

    question = Question(model, sparsity, input_, beams, target)
    _start(threads)
    result = measure(question, rounds, check, progress=log.print)
    dropped = f"{result['sparsity']:.1%} dropped, {target} tokens to produce, beam {beams}"
    table = Table(title=f"Dense/short, predicted: {dropped}", caption_justify="left")
    table.add_column("source", justify="right")
    cells: dict[int, list[str]] = {}
    for row in result["table"]:
        cells.setdefault(row["source"], []).extend(f"{row['speed_up'][phase]:.2f}" for phase in ("decode", "both"))
    for batch in result["pays_from"]:
        table.add_column(f"batch {batch}\ndecode", justify="right")
        table.add_column("\nboth", justify="right")
    for source, times in cells.items():
        table.add_row(str(source), *times)
    pays = []
    for batch, found in result["pays_from"].items():
        decode, both = ("not at the longest" if tokens is None else f"from {tokens} on" for tokens in found.values())
        pays.append(f"batch {batch} {decode} (with encoding {both})")
    table.caption = f"{PAYS - 1:.0%} or more, up to {result['longest_source']} source tokens: {'; '.join(pays)}."
    if check:
        title = "Shapes that were not fitted: measured CPU seconds (error of the prediction)"
        checked = Table(title=title, box=None, padding=(0, 2, 0, 0))
        for column in ("batch", "source", "dropped", "encode", "dense", "short", "dense/short"):
            checked.add_column(column, justify="right")
        for row in result["check"]:
            shape, times = row["shape"], row["speed_up"]
            checked.add_row(
                str(shape["batch"]), str(shape["source"]), f"{shape['dropped']:.0%}",
                *(f"{_brief(row['measured'][phase])} ({error:+.0%})" for phase, error in row["error"].items()),
                f"{times['measured']:.2f} ({times['predicted'] / times['measured'] - 1:+.0%})",
            )  # fmt: skip
        console.print(checked)
    _report(result, table, output)
