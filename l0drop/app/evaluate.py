"""`l0drop evaluate`: scores, and against a baseline a verdict and the tail risk."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from l0drop.app.runs import Dtype, Threads

if TYPE_CHECKING:
    from l0drop.study.systems import System

console = Console()
log = Console(stderr=True)


class Metric(StrEnum):
    bleu = "bleu"
    bleu_paper = "bleu_paper"
    chrf = "chrf"
    rouge = "rouge"


class Tokenize(StrEnum):
    mteval = "13a"
    intl = "intl"
    zh = "zh"
    none = "none"


def evaluate(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL...",
            help="A run, a model folder, or a text file of outputs; several are one system with several seeds. "
            "A sweep: every point against its reference.",
        ),
    ],
    source: Annotated[
        Path | None, typer.Option(help="Source text, one per line; left out, the test text of the run's recipe.")
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="Reference text, line by line.")] = None,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(help="What to compare with: a run, a model folder or a text file; one for each MODEL."),
    ] = None,
    documents: Annotated[
        bool, typer.Option("--documents", help="Draw documents, not sentences, in the bootstrap; blank lines end them.")
    ] = False,
    margin: Annotated[float, typer.Option(help="The loss that is small enough to accept, in points.")] = 0.5,
    metric: Annotated[Metric | None, typer.Option(help="For the verdict; left out, the recipe's, or bleu.")] = None,
    tokenize: Annotated[
        Tokenize | None, typer.Option(help="Of bleu; left out, the recipe's, or 13a.", metavar="13a|intl|zh|none")
    ] = None,
    languages: Annotated[
        str | None, typer.Option(help="Of source and target, for the negations: en-de.", metavar="SOURCE-TARGET")
    ] = None,
    beams: Annotated[int | None, typer.Option(help="Left out, the recipe's, or the model's own.", min=1)] = None,
    length_penalty: Annotated[float | None, typer.Option(help="The same.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="The same.", min=1)] = None,
    source_lang: Annotated[str | None, typer.Option(help="For multilingual models, as the tokenizer calls it.")] = None,
    target_lang: Annotated[str | None, typer.Option(help="For multilingual models, as the tokenizer calls it.")] = None,
    controls: Annotated[
        bool, typer.Option("--controls", help="Also score with shuffled sources, and with none.")
    ] = False,
    resamples: Annotated[int, typer.Option(help="Of the bootstrap.", min=100)] = 2000,
    output: Annotated[
        Path | None, typer.Option(help="The folder to write; left out, evaluation/ in the first MODEL's folder.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Such as cpu or cuda; left out, a GPU where there is one.")] = None,
    dtype: Annotated[
        Dtype | None,
        typer.Option(
            help="What MODEL decodes in, and not the baseline: int8 beside the same model shows what it costs."
        ),
    ] = None,
    threads: Threads = None,
) -> None:
    """Score a model's outputs, and say whether they are as good as a baseline's."""
    import torch

    from l0drop.decoding.folder import generation_of
    from l0drop.models.quiet import quiet_libraries
    from l0drop.study.evaluate import Judged, Judging, read_files, read_test_text, write
    from l0drop.study.evaluate import evaluate as run_evaluation
    from l0drop.study.sweep import SUMMARY, continued_run
    from l0drop.study.systems import System

    if threads is not None:
        torch.set_num_threads(threads)
    quiet_libraries()
    is_sweep = (models[0] / SUMMARY).is_file()
    if is_sweep:
        if len(models) > 1 or baseline or output is not None:
            raise ValueError(f"{models[0]}: is a sweep; each point is compared with the continued baseline in it")
        continued = System(models[0] / continued_run(models[0]))
        groups = [([run], [continued]) for run in _points(models[0] / SUMMARY, dtype)]
    else:
        groups = [([System(path, dtype) for path in models], [System(path) for path in baseline or ()])]
    first = groups[0][0][0]
    folders = [_output(systems[0], output) for systems, _ in groups]
    if documents and source is None and first.recipe is not None and first.recipe.data.documents:
        raise ValueError("--documents: the examples of this run are joined lines already, and are drawn as they are")
    if (source is None) != (reference is None):
        raise ValueError("--source and --reference: one needs the other")
    if source is not None and reference is not None:
        text = read_files(source, reference)
    elif first.run is not None:
        text = read_test_text(first.run)
    else:
        raise ValueError(f"--source and --reference are needed: {first.path} belongs to no run that has test text")
    if text.one_sided:
        log.print(f"[yellow]{text.one_sided} lines are blank on one side only; they are scored as they are[/]")
    recipe = first.recipe
    of_recipe: dict[str, Any] = {}
    judging: dict[str, Any] = {}
    if recipe is not None:
        of_recipe = generation_of(recipe)
        judging = {"metric": recipe.evaluate.metric, "tokenize": recipe.evaluate.tokenize}
    spoken = {"source_lang": source_lang, "target_lang": target_lang}
    given = {"num_beams": beams, "length_penalty": length_penalty, "max_new_tokens": max_new_tokens, **spoken}
    generation = of_recipe | {name: value for name, value in given.items() if value is not None}
    asked = {"metric": metric and metric.value, "tokenize": tokenize and tokenize.value}
    how = Judging(
        **judging | {name: value for name, value in asked.items() if value is not None}, margin=margin,
        documents=documents, languages=_languages(languages), controls=controls, resamples=resamples,
    )  # fmt: skip
    known: dict[System, Judged] = {}
    for (systems, baselines), folder in zip(groups, folders, strict=True):
        with decoding(len(text.sources)) as progress:
            metrics, files = run_evaluation(
                systems, baselines, text, how, generation, device=device, progress=progress, known=known
            )
        write(folder, metrics, files)
        for side in (run[side] for run in metrics["runs"] for side in ("system", "baseline") if side in run):
            if side.get("sources_cut"):
                log.print(
                    f"{side['name']}: {side['sources_cut']} sources were longer than it reads, and cut",
                    style="yellow",
                    markup=False,
                )
        console.print(scores_table(metrics))
        if baselines:
            console.print(tail_table(metrics))
            console.print(verdict(metrics))
        log.print(f"done: {folder / 'metrics.json'}", markup=False)


def _points(summary: Path, dtype: str | None) -> "list[System]":
    from l0drop.study.sweep import finished_points
    from l0drop.study.systems import System

    return [System(summary.parent / point["run"], dtype) for point in finished_points(summary)]


def _output(system: "System", output: Path | None) -> Path:
    from l0drop.study.evaluate import check_folder

    if output is None and not system.is_model:
        raise ValueError(f"--output is needed: {system.path} is a file, beside which nothing is written unasked")
    if output is None and not system.path.exists():
        raise ValueError(f"--output is needed: {system.path} is a name on the hub, and has no folder here")
    folder = output or (system.run or system.path) / "evaluation"
    check_folder(folder)
    return folder


def _languages(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    source, _, target = text.partition("-")
    if not source or not target:
        raise ValueError(f"--languages {text}: should be two codes, such as en-de")
    return source, target


@contextmanager
def decoding(lines: int) -> "Iterator[Callable[[System], Callable[[int], None]]]":
    """A bar per system that decodes."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=log) as bars:

        def start(system: "System") -> Callable[[int], None]:
            task = bars.add_task(escape(str(system.path)), total=lines)
            return lambda done: bars.update(task, advance=done)

        yield start


def scores_table(metrics: dict[str, Any]) -> Table:
    """All metrics of all systems, beside their baselines."""
    table = Table(title=f"{metrics['scored']} of {metrics['lines']} lines scored")
    compared = "baseline" in metrics["runs"][0]
    for column in ("system", "metric", "score", *(("baseline", "difference", "95% bound") if compared else ())):
        table.add_column(column, justify="left" if column in ("system", "metric") else "right")
    for run in metrics["runs"]:
        sparsity = run["system"].get("sparsity")
        for number, (name, score) in enumerate(run["system"]["scores"].items()):
            cells = [score["name"], f"{score['value']:.2f}"]
            if compared:
                found = run["differences"][name]
                cells += [f"{found['baseline']:.2f}", f"{found['difference']:+.2f}", f"{found['lower']:+.2f}"]
            what = escape(run["system"]["name"]) if number == 0 else ""
            table.add_row(what if number != 1 or sparsity is None else f"sparsity {sparsity:.1%}", *cells)
        for name, score in run["system"].get("controls", {}).items():
            table.add_row(f"  {name.replace('_', ' ')}", score["name"], f"{score['value']:.2f}")
    main = metrics["runs"][0]["system"]["scores"][metrics["judging"]["metric"]]
    table.caption = f"{main['name']}: {main['signature']}"
    return table


def tail_table(metrics: dict[str, Any]) -> Table:
    """Tail risk of the first system against its baseline."""
    tail = metrics["runs"][0]["tail"]
    same = metrics["runs"][0]["same_outputs"]
    table = Table(
        title="tail risk", caption=f"{same} of {metrics['scored']} outputs are the baseline's, letter by letter"
    )
    for column in ("", "system", "baseline", "reference"):
        table.add_column(column, justify="left" if not column else "right")
    chrf = tail["chrf"]
    table.add_row(f"sentences that lose more than {chrf['threshold']:.0f} chrF", f"{chrf['losing']:.1%}")
    table.add_row(f"sentences that gain more than {chrf['threshold']:.0f} chrF", f"{chrf['gaining']:.1%}")
    for name in ("numbers", "names", "negations"):
        if "missing" not in tail[name]:
            table.add_row(f"{name}: not counted, {tail[name]['why']}")
            continue
        shares = ("-" if share is None else f"{share:.1%}" for share in tail[name]["missing"].values())
        table.add_row(f"{name} of the source missing (of {tail[name]['expected']})", *shares)
    for name, what in {
        "ratio": "length by the reference's",
        "under_half": "outputs under half of it",
        "over_double": "over double",
    }.items():
        form = ".3f" if name == "ratio" else ".1%"
        table.add_row(what, *(format(tail["length"][side][name], form) for side in ("system", "baseline")))
    return table


def verdict(metrics: dict[str, Any]) -> str:
    """One sentence: non-inferior or not, by what metric, at what margin."""
    metric = metrics["judging"]["metric"]
    found = metrics["over_seeds"][metric] if "over_seeds" in metrics else metrics["runs"][0]["differences"][metric]
    name = metrics["runs"][0]["system"]["scores"][metric]["name"]
    seeds = f" over {found['seeds']} seeds" if "seeds" in found else ""
    few = "; so few seeds say little about others" if found.get("few_seeds") else ""
    shown = "non-inferior" if found["non_inferior"] else "not shown to be non-inferior"
    return (
        f"[bold]{shown}[/] at a margin of {found['margin']:g} {name}{seeds}: the difference is "
        f"{found['difference']:+.2f}, with 95% confidence above {found['lower']:+.2f} "
        f"({found['units']} {found['unit']}s, {found['resamples']} resamples{few})"
    )
