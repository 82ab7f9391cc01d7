"""`l0drop analyze`: the dropped tokens and the attention of a sparse run, as numbers and figures."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from l0drop.app.command import with_options
from l0drop.app.options import Threads
from l0drop.app.terminal import console, log, stopped_by_user

LABELS = {"baseline": "dense"}
SHORT_NAMES = {"punctuation": "punct."}
"""Group names that would not fit into 80 columns."""


@stopped_by_user("analyses that are done have been written")
def analyze(
    folders: Annotated[
        list[str], typer.Argument(help="Run folders, model folders, or sweep folders.", metavar="RUN_OR_SWEEP")
    ],
    baseline: Annotated[
        str | None,
        typer.Option(help="The dense run or model to compare with. Default: the start of fine-tuning.", metavar="RUN"),
    ] = None,
    entmax: Annotated[
        str | None, typer.Option(help="A run with sparse attention, to compare with.", metavar="RUN")
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Text to read. Default: the recipe's test set.", metavar="FILE")
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="References of --source. Default: the model's outputs are the targets.", metavar="FILE"),
    ] = None,
    sentences: Annotated[
        int | None, typer.Option(help="The number of sentences, from the start. Default: all.", min=2, metavar="N")
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(
            help="The source language, such as en. Default: English if the text looks like it.", metavar="LANG"
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Measure only this part: mass, maps, gates, groups, words, places, entropy, time, interventions, "
            "source. Other parts in analysis.json stay if models, text and settings are the same.",
            metavar="PART",
        ),
    ] = None,
    show: Annotated[
        list[int] | None, typer.Option(help="Draw the attention map of this sentence, counted from 0.", metavar="N")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for analysis.json and figures/. Default: the run's folder.", metavar="FOLDER"),
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="For a sweep: analyse no point in full.")] = False,
    threads: Threads = None,
) -> None:
    """Measure what sparse runs drop, where attention goes, and what closing other gates costs; draw figures.

    For a sweep, measure groups, attention and entropy of all points, and all parts of one point: the one that the
    report shows if the sweep was evaluated, else the learned gate whose sparsity is nearest to half.

    An analysis replaces the earlier one and its figures. With --only, other parts stay if models, text and settings are
    the same.
    """
    import torch

    from l0drop.decoding.folder import locate_model
    from l0drop.models.quiet import quiet_libraries
    from l0drop.study.analysis.parts import analyze as analyze_run
    from l0drop.study.analysis.parts import analyze_sweep, typical_point
    from l0drop.study.analysis.subject import Reading, opened
    from l0drop.study.shown import shown_point

    if threads is not None:
        torch.set_num_threads(threads)
    if output is not None and len(folders) > 1:
        raise ValueError(f"--output: one folder for {len(folders)} analyses; give them one at a time")
    quiet_libraries()
    reading = Reading(source, reference, sentences, language)
    for folder in folders:
        is_sweep = (Path(folder) / "sweep.json").is_file()
        if is_sweep and (only or show or entmax):
            raise ValueError(f"--only, --show, --entmax: are for single runs, and {folder} is a sweep")
        target = output or (None if is_sweep else locate_model(folder)[1]) or Path(folder)
        if not target.is_dir() and output is None:
            raise ValueError(f"--output: {folder} is not a folder here; name one for analysis.json and figures")
        with bars() as bar:
            if is_sweep:
                result = analyze_sweep(Path(folder), reading, baseline, bar, _say)
            else:
                with opened(folder, reading, baseline=baseline, entmax=entmax) as subject:
                    result = analyze_run(subject, only, show or [], bar)
        _publish(result, target, some_parts=bool(only))
        if is_sweep and not brief:
            point = Path(folder) / (shown_point(Path(folder)) or typical_point(result))
            _say(f"all parts of {point}, for the report (l0drop analyze RUN for other points)")
            with bars() as bar, opened(str(point), reading, baseline=baseline) as subject:
                result = analyze_run(subject, bar=bar)
            _publish(result, point if output is None else output / point.name)


def _say(text: str) -> None:
    log.print(text, markup=False, highlight=False, soft_wrap=True)


def _publish(result: dict[str, Any], folder: Path, some_parts: bool = False) -> None:
    """Write an analysis, or some parts of one; draw the figures of all parts, and print the new tables."""
    from l0drop.report.figures import draw_all
    from l0drop.study.analysis.parts import RESULT, write, write_parts
    from l0drop.study.source_need import warning_of_analysis

    folder.mkdir(parents=True, exist_ok=True)
    (write_parts if some_parts else write)(result, folder / RESULT)
    drawn = draw_all(folder)
    for table in tables(result):
        console.print(table)
    if warning := warning_of_analysis(result):
        log.print(warning, style="yellow", markup=False, highlight=False, soft_wrap=True)
    for part, why in _omitted(result).items():
        log.print(f"[yellow]omitted: {part}[/] ({escape(with_options(why))})", highlight=False, soft_wrap=True)
    if why := result.get("missing", {}).get("baseline"):
        log.print(
            f"[yellow]not compared with a dense model[/] ({escape(with_options(why))})", highlight=False, soft_wrap=True
        )
    _say(f"{folder / RESULT}, and {len(drawn)} figures in {folder / 'figures'}")


def _omitted(result: dict[str, Any]) -> dict[str, str]:
    """Omitted parts of a run, or of a sweep's points, with the reasons."""
    return {part: why for one in result.get("points", [result]) for part, why in one.get("left_out", {}).items()}


@contextmanager
def bars() -> Iterator[Callable[[str, int], Any]]:
    """Progress bars, one for each step of the analysis."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=log) as progress:

        @contextmanager
        def bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
            task = progress.add_task(title, total=total or None)
            yield lambda done: progress.update(task, advance=done)
            progress.update(task, total=progress.tasks[task].completed)

        yield bar


def tables(result: dict[str, Any]) -> Iterator[RichTable]:
    """The most important numbers."""
    from l0drop.study.source_need import NAMES, QUESTION

    if "points" in result:
        yield from _of_points(result)
        return
    text = result["text"]
    targets = "human references" if text["target"] == "reference" else text["target"]
    if "mass" in result:
        head = ["attention of", "tokens", "mean", "under 0.6", "under 0.6 of mean"]
        rows = []
        for name, mass in result["mass"]["systems"].items():
            shares = (f"{mass['share_under_0.6']:.1%}", f"{mass['share_under_0.6_of_mean']:.1%}")
            label = name.replace("baseline", "dense").replace("_", ", ")
            rows.append([label, f"{mass['words']:,}", f"{mass['mean']:.2f}", *shares])
        dropped = ", ".join(
            f"{LABELS.get(name, name)} {share:.1%}" for name, share in result["mass"]["share_on_dropped"].items()
        )
        note = f"{text['sentences']:,} sentences, targets: {targets}"
        note += f"; attention on dropped tokens: {dropped}" if dropped else ""
        yield _table("attention mass per source token", head, rows, note)
    if "groups" in result:
        rows = [
            [name, f"{rate['tokens']:,}", _percent(rate["sparsity"])]
            for name, rate in result["groups"]["groups"].items()
        ]
        yield _table(f"sparsity by group, overall {result['sparsity']:.1%}", ["group", "tokens", "sparsity"], rows)
    if "entropy" in result:
        rows = [
            [LABELS.get(name, name), *(_number(result["entropy"][name][kind]) for kind in ("kept", "dropped"))]
            for name in ("sparse", "baseline", "uniform")
            if name in result["entropy"]
        ]
        yield _table("self-attention entropy, nats", ["model", "kept", "dropped"], rows)
    if "interventions" in result:
        systems = result["interventions"]["systems"]
        rows = [
            [
                LABELS.get(model, model),
                row["closed"],
                f"{row['share']:.0%}" if row["share"] else "",
                f"{row['sparsity']:.1%}",
                f"{row['cross_entropy']:.3f}",
                _score(row),
            ]
            for model, found in systems.items()
            for row in found
        ]
        name = _score_name([row for found in systems.values() for row in found], text)
        head = ["model", "closed gates", "share", "sparsity", "cross-entropy", name]
        yield _table("gates closed manually", head, rows, _meaning(text))
    if "source" in result:
        found = {label: result["source"][kind] for kind, label in NAMES.items()}
        rows = [[label, f"{one['cross_entropy']:.3f}", _score(one)] for label, one in found.items()]
        head = ["source", "cross-entropy", _score_name(list(found.values()), text)]
        yield _table(QUESTION, head, rows, _meaning(text))


def _score(entry: dict[str, Any]) -> str:
    """Empty for outputs that are the targets themselves."""
    return "" if entry.get("score") is None else f"{entry['score']['value']:.2f}"


def _score_name(entries: list[dict[str, Any]], text: dict[str, Any]) -> str:
    name = next((entry["score"]["name"] for entry in entries if entry.get("score") is not None), "score")
    return name if text["target"] == "reference" else f"{name} agreement"


def _meaning(text: dict[str, Any]) -> str:
    if text["target"] == "reference":
        return ""
    return f"There are no references: scores measure agreement with the {text['target']}, not quality."


def _of_points(result: dict[str, Any]) -> Iterator[RichTable]:
    """Sparsity by group, and entropies, of every point of a sweep."""
    from rich import box

    points = result["points"]
    names = list(next((point["groups"]["groups"] for point in points if "groups" in point), {}))
    rows = []
    for point in points:
        rates = [point["groups"]["groups"][name]["sparsity"] if "groups" in point else None for name in names]
        shares = ["" if rate is None else f"{rate:.0%}" for rate in rates]
        rows.append([point["run"], f"{point['sparsity']:.1%}", *shares])
    head = ["model", "all", *(SHORT_NAMES.get(name, name) for name in names)]
    groups = _table(f"{Path(result['sweep']).name}: sparsity by group", head, rows)
    groups.box, groups.pad_edge, groups.columns[0].no_wrap = box.SIMPLE_HEAD, False, True
    yield groups
    if any("entropy" in point for point in points):
        found = [(point["run"], point["entropy"]["sparse"] if "entropy" in point else {}) for point in points]
        rows = [[run, *(_number(one.get(kind)) for kind in ("kept", "dropped"))] for run, one in found]
        yield _table("self-attention entropy, nats", ["model", "kept", "dropped"], rows)


def _table(title: str, head: list[str], rows: list[list[str]], note: str = "") -> RichTable:
    from l0drop.report.table import Table, for_terminal

    return for_terminal(Table(head, rows, note, prose=frozenset({"closed gates"})), title)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
