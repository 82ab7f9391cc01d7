"""`l0drop analyze`: what a sparse run drops and where its attention goes, as numbers and figures."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from l0drop.app.runs import Threads

console = Console()
log = Console(stderr=True)


def analyze(
    folders: Annotated[
        list[str], typer.Argument(help="Run folders, model folders, or sweep folders.", metavar="RUN_OR_SWEEP")
    ],
    baseline: Annotated[
        str | None, typer.Option(help="The baseline's run or model; left out, what the recipe started from.")
    ] = None,
    entmax: Annotated[str | None, typer.Option(help="A run with sparse attention, to compare with.")] = None,
    source: Annotated[Path | None, typer.Option(help="Text to read; left out, the recipe's test set.")] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Its references; left out, the target is the model's own output.")
    ] = None,
    sentences: Annotated[int | None, typer.Option(help="So many, from the start; left out, all.", min=2)] = None,
    language: Annotated[
        str | None, typer.Option(help="Of the source, such as en; left out, the text is looked at.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this part: mass, maps, gates, groups, words, places, entropy, time, interventions, source. "
            "The others that analysis.json has stay, if they are of the same models, text and settings."
        ),
    ] = None,
    show: Annotated[
        list[int] | None, typer.Option(help="Draw the attention map of this sentence, counted from 0.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for analysis.json and figures/; left out, the run's own.")
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Of a sweep, no point in full.")] = False,
    threads: Threads = None,
) -> None:
    """Measure what sparse runs drop, where attention goes, and what closing other gates costs; draw it.

    Of a sweep, what all its points drop and how their encoders attend, and one of them in full: the one that drops
    nearest to half, if several do.

    An analysis takes the place of the one before it, with its figures; with --only the parts that were not measured
    again stay, unless they are of other models, another text or other settings.
    """
    import torch

    from l0drop.decoding.folder import locate_model
    from l0drop.models.quiet import quiet_libraries
    from l0drop.study.analysis.parts import analyze as analyze_run
    from l0drop.study.analysis.parts import analyze_sweep, typical_point
    from l0drop.study.analysis.subject import Reading, opened

    if threads is not None:
        torch.set_num_threads(threads)
    if output is not None and len(folders) > 1:
        raise ValueError(f"--output: one folder for {len(folders)} analyses; give them one by one")
    quiet_libraries()
    reading = Reading(source, reference, sentences, language)
    for folder in folders:
        is_sweep = (Path(folder) / "sweep.json").is_file()
        if is_sweep and (only or show or entmax):
            raise ValueError(f"--only, --show, --entmax: are for single runs, and {folder} is a sweep")
        place = output or (None if is_sweep else locate_model(folder)[1]) or Path(folder)
        if not place.is_dir() and output is None:
            raise ValueError(f"--output: {folder} is no folder here; say where analysis.json and figures go")
        with bars() as bar:
            if is_sweep:
                result = analyze_sweep(Path(folder), reading, baseline, bar, log.print)
            else:
                with opened(folder, reading, baseline=baseline, entmax=entmax) as subject:
                    result = analyze_run(subject, only, show or [], bar)
        _published(result, place, some_parts=bool(only))
        if is_sweep and not brief:
            point = Path(folder) / typical_point(result)
            log.print(f"{point} in full, for the report (l0drop analyze RUN does the others)")
            with bars() as bar, opened(str(point), reading, baseline=baseline) as subject:
                result = analyze_run(subject, bar=bar)
            _published(result, point if output is None else output / point.name)


def _published(result: dict[str, Any], place: Path, some_parts: bool = False) -> None:
    """Write an analysis, or some parts into one, draw the figures of all that is there, and show the new tables."""
    from l0drop.report.figures import draw_all
    from l0drop.study.analysis.parts import RESULT, write, write_parts

    place.mkdir(parents=True, exist_ok=True)
    (write_parts if some_parts else write)(result, place / RESULT)
    drawn = draw_all(place)
    for table in tables(result):
        console.print(table)
    for part, why in _left_out(result).items():
        log.print(f"[yellow]left out: {part}[/] ({escape(why)})", highlight=False)
    if why := result.get("missing", {}).get("baseline"):
        log.print(f"[yellow]nothing was compared with a baseline[/] ({escape(why)})", highlight=False)
    log.print(f"{place / RESULT}, and {len(drawn)} figures in {place / 'figures'}")


def _left_out(result: dict[str, Any]) -> dict[str, str]:
    """Parts that are missing, of a run or of points of a sweep, and why."""
    return {part: why for one in result.get("points", [result]) for part, why in one.get("left_out", {}).items()}


@contextmanager
def bars() -> Iterator[Callable[[str, int], Any]]:
    """Progress bars, one for each piece of work."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=log) as progress:

        @contextmanager
        def bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
            task = progress.add_task(title, total=total or None)
            yield lambda done: progress.update(task, advance=done)
            progress.update(task, total=progress.tasks[task].completed)

        yield bar


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """The numbers that are read first."""
    if "points" in result:
        yield _points(result)
        return
    text = result["text"]
    if "mass" in result:
        table = _table("attention mass per source word", "", "words", "mean", "under 0.6", "under 0.6 of mean")
        for name, mass in result["mass"]["systems"].items():
            shares = (f"{mass['share_under_0.6']:.1%}", f"{mass['share_under_0.6_of_mean']:.1%}")
            table.add_row(name.replace("_", " "), f"{mass['words']:,}", f"{mass['mean']:.2f}", *shares)
        dropped = ", ".join(f"{name} {share:.1%}" for name, share in result["mass"]["share_on_dropped"].items())
        table.caption = f"{text['sentences']:,} sentences, target: {text['target']}"
        table.caption += f"; attention on dropped words: {dropped}" if dropped else ""
        yield table
    if "groups" in result:
        table = _table(f"sparsity by group, overall {result['sparsity']:.1%}", "group", "tokens", "sparsity")
        for name, rate in result["groups"]["groups"].items():
            table.add_row(name, f"{rate['tokens']:,}", "" if rate["sparsity"] is None else f"{rate['sparsity']:.1%}")
        yield table
    if "entropy" in result:
        table = _table("entropy of the last self-attention, nats", "", "kept", "dropped")
        for name in ("sparse", "baseline", "uniform"):
            if name in result["entropy"]:
                table.add_row(name, *(_number(result["entropy"][name][kind]) for kind in ("kept", "dropped")))
        yield table
    if "interventions" in result:
        name = next(iter(result["interventions"]["systems"].values()))[0]["score"]["name"]
        table = _table("gates closed by hand", "model", "closed", "share", "sparsity", "cross-entropy", name)
        for model, rows in result["interventions"]["systems"].items():
            for row in rows:
                rates = (f"{row['share']:.0%}" if row["share"] else "", f"{row['sparsity']:.1%}")
                values = (f"{row['cross_entropy']:.3f}", f"{row['score']['value']:.2f}")
                table.add_row(model, row["closed"], *rates, *values)
        yield table
    if "source" in result:
        name = result["source"]["own_source"]["score"]["name"]
        table = _table("does it need its source?", "source", "cross-entropy", name)
        for kind in ("own_source", "shuffled_source", "no_source"):
            found = result["source"][kind]
            table.add_row(kind.replace("_", " "), f"{found['cross_entropy']:.3f}", f"{found['score']['value']:.2f}")
        yield table


def _points(result: dict[str, Any]) -> Table:
    names = list(next((point["groups"]["groups"] for point in result["points"] if "groups" in point), {}))
    table = _table(f"{result['sweep']}: sparsity by group, entropy", "run", "overall", *names, "kept", "dropped")
    for point in result["points"]:
        rates = [point["groups"]["groups"][name]["sparsity"] if "groups" in point else None for name in names]
        shares = ["" if rate is None else f"{rate:.0%}" for rate in rates]
        found = point["entropy"]["sparse"] if "entropy" in point else {}
        entropies = [_number(found.get(kind)) for kind in ("kept", "dropped")]
        table.add_row(point["run"], f"{point['sparsity']:.1%}", *shares, *entropies)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
