"""`l0drop bench`: speed measurements on this machine, as tables, and as JSON with everything needed to repeat them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from l0drop.app.command import Command, Group
from l0drop.app.numbers import listed
from l0drop.app.options import given
from l0drop.app.terminal import console, log

if TYPE_CHECKING:
    from l0drop.runs.run import DialCurve

bench = typer.Typer(cls=Group, no_args_is_help=True, help="Measure speed on this machine.")

Rounds = Annotated[int, typer.Option(help="Rounds; the systems take turns.", min=1)]
Threads = Annotated[int, typer.Option(help="CPU threads.", min=1, max=1024)]
Output = Annotated[Path | None, typer.Option("--json", help="Write the result to this JSON file.")]


def _report(result: dict[str, Any], table: Table, output: Path | None) -> None:
    console.print(table)
    console.print(_machine(result), highlight=False)
    if output is not None:
        from l0drop.data.whole import write_whole

        write_whole(output, json.dumps(result, indent=1) + "\n")


def _machine(result: dict[str, Any]) -> str:
    threads = result["threads"]
    where = f"{result['device']}, {threads} thread{'s' if threads != 1 else ''}, torch {result['torch']}"
    return f"{where}, commit {result['commit']}" if result["commit"] else where


def _table(title: str, columns: Sequence[str], caption: str = "") -> Table:
    """A table for 80 columns: the first column holds names, which are never cut."""
    table = Table(
        title=title, title_justify="left", caption=caption or None, caption_justify="left", box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0), pad_edge=False,
    )  # fmt: skip
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=not index)
    return table


def _start(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


@bench.command(cls=Command)
def train(
    device: Annotated[str, typer.Option(help="cpu: the cost of the gate; cuda: the speed of training.")] = "cpu",
    rounds: Annotated[int | None, typer.Option(help="Rounds. Default: 10 on a CPU, 2 on a GPU.", min=1)] = None,
    threads: Threads = 1,
    output: Output = None,
) -> None:
    """Train a Transformer base: on a CPU with and without gate, on a GPU with our trainer and Hugging Face's."""
    _start(threads)
    if device == "cuda":
        _train_on_gpu(rounds, output)
        return
    if device != "cpu":
        raise ValueError(f"device: expected cpu or cuda, got {device!r}")
    from l0drop.bench.gates import gate_cost

    result = gate_cost(rounds or 10, progress=log.print)
    table = _table("One training step of a Transformer base, medians", ("", "CPU s", "wall s"))
    for name, seconds in result["seconds"].items():
        middle = len(seconds["cpu"]) // 2
        table.add_row(f"{name} gate", f"{sorted(seconds['cpu'])[middle]:.3f}", f"{sorted(seconds['wall'])[middle]:.3f}")
    table.caption = f"The gate costs {result['ratio_cpu'] - 1:+.1%} CPU time (median of {rounds or 10} rounds)."
    _report(result, table, output)


def _train_on_gpu(rounds: int | None, output: Path | None) -> None:
    import statistics

    import torch

    from l0drop.bench.training import Benchmark, Size

    if not torch.cuda.is_available():
        raise ValueError("device: torch finds no CUDA GPU; --device cpu measures the cost of the gate")
    result = Benchmark("cuda", Size() if rounds is None else Size(rounds=rounds)).run(progress=log.print)
    title = f"Training a Transformer base, {result['precision']}, batches of {result['batch_tokens']:,} padded tokens"
    table = _table(title, ("", "tokens/s", "ms/step", "MFU", "MFU, padded", "peak GiB"))
    for name, results in result["rounds"].items():
        middle = {key: statistics.median(r[key] for r in results) for key in results[0]}
        table.add_row(
            name.replace(", ", ",\n  "),
            f"{middle['tokens_per_second']:,.0f}",
            f"{middle['milliseconds_per_step']:.1f}",
            f"{middle['mfu']:.1%}",
            f"{middle['mfu_of_positions']:.1%}",
            f"{middle['peak_memory_gib']:.1f}",
        )
    curves = result["curves"]
    table.caption = (
        f"Speed-up of l0drop over Hugging Face's Trainer: {result['times_theirs_with_cudnn_attention_off']:.2f} x with "
        f"cuDNN attention off, {result['times_theirs']:.1f} x with its defaults. The gate costs "
        f"{result['gate_overhead']:.1%}. MFU: share of the {result['matrix_tflops']:.0f} TFLOP/s of a large matrix "
        "product; padded: padding counted as work. Loss curves, second half: the fast path differs from the plain one "
        f"by {curves['difference']:.4f}, two plain runs by {curves['noise']:.4f}."
    )
    _report(result, table, output)


@bench.command(cls=Command)
def layerwise(rounds: Rounds = 7, threads: Threads = 1, output: Output = None) -> None:
    """Time an encoder with gates between its layers: dropped rows removed, and masked."""
    from l0drop.bench.gates import layerwise_encoder

    _start(threads)
    result = layerwise_encoder(rounds=rounds, progress=log.print)
    table = _table(
        "Encoder with gates between its layers, CPU seconds (medians)",
        ("rows kept", "removed", "masked", "speed-up of removing over masking"),
    )
    for row in result["rows"]:
        table.add_row(
            f"{row['kept']:.0%}",
            f"{row['cpu_seconds_removed']:.3f}",
            f"{row['cpu_seconds_masked']:.3f}",
            f"{1 / row['ratio_cpu']:.2f}",
        )
    _report(result, table, output)


@bench.command(cls=Command)
def drift(threads: Threads = 1, output: Output = None) -> None:
    """Compare logits in low precision: short memory with dense memory, and dense memory with float32."""
    from l0drop.bench.gates import drift as measure

    _start(threads)
    result = measure(progress=log.print)
    title = "Mean absolute difference of logits / mean absolute logit"
    table = _table(title, ("family", "gating", "attention", "dtype", "short - dense", "dense - float32"))
    for row in result["rows"]:
        table.add_row(
            row["family"], row["gating"], row["attention"], row["dtype"],
            f"{row['short_against_dense']:.1e}", f"{row['dense_against_float32']:.1e}",
        )  # fmt: skip
    _report(result, table, output)


@bench.command(cls=Command)
def decode(
    model: Annotated[str | None, typer.Argument(help="A run or model folder, or a name on the hub.")] = None,
    input_: Annotated[Path | None, typer.Option("--input", help="Text for the model to decode.")] = None,
    sentences: Annotated[int | None, typer.Option(help="Lines of it to decode. Default: 100.", min=1)] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest output. Default: 128.", min=1)] = None,
    shape: Annotated[
        str | None, typer.Option(help="wikisum, cnndm, mt, or several with commas. Default: cnndm, without MODEL.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Sentences in a batch. Default: the shape's, or 32.", min=1)] = None,
    source: Annotated[int | None, typer.Option(help="Source tokens. Default: the shape's.", min=1)] = None,
    target: Annotated[int | None, typer.Option(help="Tokens to produce. Default: the shape's.", min=1)] = None,
    dropped: Annotated[float | None, typer.Option(help="Share of encodings dropped. Default: the shape's.")] = None,
    beams: Annotated[int, typer.Option(help="Beams.", min=1)] = 4,
    systems: Annotated[str | None, typer.Option(help="Systems to run, with commas. Default: all.")] = None,
    rounds: Rounds = 5,
    slow_rounds: Annotated[int, typer.Option(help="Rounds of Hugging Face's generate.", min=1)] = 1,
    threads: Threads = 1,
    output: Output = None,
) -> None:
    """Time decoding with our engine, Hugging Face's generate and CTranslate2, on the short and on the dense memory.

    With MODEL, decode lines of text; without, a batch of a given shape on a Transformer base with random weights.
    """
    from l0drop.bench.decoding import decode_benchmark
    from l0drop.bench.peers import SYSTEMS
    from l0drop.bench.workloads import chosen_workloads

    workloads = chosen_workloads(
        model, input_, None if shape is None else [name.strip() for name in shape.split(",")], beams=beams,
        sizes=given(batch=batch, source=source, target=target, dropped=dropped),
        limits=given(sentences=sentences, max_new_tokens=max_new_tokens),
    )  # fmt: skip
    chosen = SYSTEMS if systems is None else tuple(name.strip() for name in systems.split(","))
    results = {}
    for name, workload in workloads.items():
        results[name] = decode_benchmark(workload, chosen, rounds, slow_rounds, threads, progress=log.print)
        console.print(_decode_table(results[name]))
    if len(results) == 1:
        (result,) = results.values()
    else:
        result = {"shapes": results, **{key: results[name][key] for key in ("device", "threads", "torch", "commit")}}
    for name, found in results.items():
        if alone := _sparsity_alone(found):
            console.print(f"{f'{name}: ' if len(results) > 1 else ''}{alone}", highlight=False)
    _report(result, _speed_up_table(results), output)


def _sparsity_alone(result: dict[str, Any]) -> str:
    """One sentence: the speed-up of our engine's short memory over its dense memory; empty if they did not both run."""
    found = {
        row["phase"]: row["times"]
        for row in result["ratios"]
        if (row["system"], row["by"]) == ("engine-dense", "engine-short")
    }
    if not found or result["gates"] is None:
        return ""
    return (
        f"Dropping {result['gates']['sparsity']:.1%} of the encodings makes our engine {found['end_to_end']:.2f} x as "
        f"fast end to end, {found['decode']:.2f} x without encoding."
    )


def _speed_up_table(results: dict[str, dict[str, Any]]) -> Table:
    """A row per pair of systems, a column per workload."""
    several = len(results) > 1
    table = _table("Speed-ups by CPU time", ("speed-up of A over B", *(results if several else ("",))))
    found: dict[str, dict[str, float]] = {}
    for name, result in results.items():
        for row in result["ratios"]:
            phase = "end to end" if row["phase"] == "end_to_end" else "decoder only"
            found.setdefault(f"{row['by']} over {row['system']}, {phase}", {})[name] = row["times"]
    for pair, times in found.items():
        table.add_row(pair, *(f"{times[name]:.2f}" if name in times else "" for name in results))
    table.caption = "ct2 decodes the model without gates, over all encodings."
    return table


def _decode_table(result: dict[str, Any]) -> Table:
    """A row per system: CPU time, throughput, latency or memory, and agreement of tokens."""
    gates = result["gates"]
    title = f"{result['sentences']} sentences, beam {result['generation']['num_beams']}"
    if gates is not None:
        title += f", longest source {gates['longest_source']}, {gates['sparsity']:.1%} dropped"
    text = any("latency_ms" in system for system in result["systems"].values())
    last = ("P50 ms", "P99 ms") if text else ("peak MiB", "K/V MiB")
    columns = ("", "encode", "decode", "total", "sent./s", *last, "same tokens")
    table = _table(f"{title}; CPU seconds, medians", columns)
    for name, system in result["systems"].items():
        table.add_row(
            name,
            *(_brief(system["median"][phase]["cpu"]) for phase in ("encode", "decode", "end_to_end")),
            _brief(system["sentences_per_second"]),
            *(_brief(system["latency_ms"]["wall"][p]) for p in ("p50", "p99") if text),
            *(_mebibytes(system["memory"][kind]) for kind in ("beyond_loaded", "cross_cache") if not text),
            _verdict(result["agreement"][name], result["sentences"]),
        )
    table.caption = (
        "total: encode + decode. sent./s: sentences per second of wall time. "
        + ("P50, P99: latency of a sentence decoded alone, wall time. " if text else "")
        + ("" if text else "peak: memory beyond the loaded system; K/V: cross-attention's keys and values. ")
        + "same tokens: sentences with the same tokens as the reference system, which is marked -."
    )
    return table


def _mebibytes(count: int | None) -> str:
    return "" if count is None else _brief(count / 2**20)


def _brief(number: float) -> str:
    """About three digits, never in scientific notation."""
    size = abs(number)
    return f"{number:,.{0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 else 4}f}"


def _verdict(found: dict[str, Any] | None, sentences: int) -> str:
    if found is None:
        return "-"
    ties = f"+{found['tied']} tied" if found["tied"] else ""
    verdict = f"{found['same']}{ties}/{sentences}"
    return f"[red]{verdict}[/]" if found["must_agree"] and found["different"] else verdict


@bench.command(cls=Command)
def dial(
    run: Annotated[Path, typer.Argument(help="A run folder, preferably trained with train.elastic.")],
    keep: Annotated[str, typer.Option(help="Shares to keep: 0.3,0.5,0.7 or 0.1:1:0.1", metavar="VALUES")],
    threads: Threads = 1,
    output: Output = None,
) -> None:
    """Measure quality and decoding time of one model at several settings of the dial, on its test set."""
    from l0drop.study.dial import dial_curve

    _start(threads)
    curve = dial_curve(run, listed(keep, "--keep"), progress=log.print)
    console.print(_dial_table(curve))
    assert curve.made_by is not None
    console.print(_machine(vars(curve.made_by)), highlight=False)
    if output is not None:
        curve.write(output)


def _dial_table(curve: "DialCurve") -> Table:
    """A row per setting; the caption names the references if they are not the text's own."""
    score = curve.rows[0].score
    title = f"{escape(curve.run)}, {curve.split} set, by the share kept"
    table = _table(title, ("keep", "sparsity", score.name, "decoding, CPU s"))
    for row in curve.rows:
        table.add_row(
            "as trained" if row.keep is None else f"{row.keep:g}",
            f"{row.sparsity:.1%}", f"{row.score.value:.2f}", f"{row.cpu_seconds:.2f}",
        )  # fmt: skip
    against = "" if curve.references is None else f"References: {escape(curve.references)}. "
    table.caption = against + score.signature
    return table


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
    rounds: Rounds = 3,
    threads: Threads = 1,
    output: Output = None,
) -> None:
    """Should I use it? Predict the speed-up of a short memory on this machine, in about a minute, without training.

    Without MODEL, for a Transformer base with random weights.
    """
    from l0drop.bench.predict import NOTES, Question
    from l0drop.bench.predict import predict as measure

    question = Question(model, sparsity, input_, beams, target, source)
    _start(threads)
    result = measure(question, rounds, check, progress=log.print)
    console.print(f"[bold]{result['answer']}[/]", highlight=False)
    console.print(f"({NOTES['answer']}.)", highlight=False)
    console.print(
        f"Assumed: {result['sparsity']:.0%} of the encodings dropped, outputs of {target} tokens, beam {beams}, "
        f"batches of {', '.join(result['pays_from'])} sentences, l0drop's engine in float32. Times are CPU times. "
        "Not predicted: the quality of the sparse model, which takes training.",
        highlight=False,
    )
    if check:
        console.print(_check_table(result))
    _report(result, _predict_table(result), output)


def _predict_table(result: dict[str, Any]) -> Table:
    """A row per source length, a column per batch size."""
    title = "Speed-up of the short over the dense memory, end to end (decoder only)"
    table = _table(title, ("source tokens", *(f"batch {batch}" for batch in result["pays_from"])))
    cells: dict[int, list[str]] = {}
    for row in result["table"]:
        gains = row["speed_up"]
        cells.setdefault(row["source"], []).append(f"{gains['both']:.2f} ({gains['decode']:.2f})")
    for length, gains in cells.items():
        table.add_row(str(length), *gains, style="bold" if length == result["source"] else "")
    return table


def _check_table(result: dict[str, Any]) -> Table:
    """A row per shape of the check: measured times with the errors of the prediction."""
    columns = ("batch", "source", "dropped", "encode s", "dense s", "short s", "dense / short")
    table = _table("Check: measured CPU seconds (error of the prediction)", columns)
    for row in result["check"]:
        shape, gains = row["shape"], row["speed_up"]
        table.add_row(
            str(shape["batch"]), str(shape["source"]), f"{shape['dropped']:.0%}",
            *(f"{_brief(row['measured'][phase])} ({error:+.0%})" for phase, error in row["error"].items()),
            f"{gains['measured']:.2f} ({gains['predicted'] / gains['measured'] - 1:+.0%})",
        )  # fmt: skip
    return table
