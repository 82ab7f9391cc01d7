"""`l0drop evaluate`: scores; compared with a baseline, also a verdict and tail risk."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from l0drop.app.command import with_options
from l0drop.app.options import Dtype, Threads
from l0drop.app.terminal import console, log, stopped_by_user

if TYPE_CHECKING:
    from l0drop.study.evaluate import EvaluationText
    from l0drop.study.systems import System


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


@stopped_by_user("models that are done have been written")
def evaluate(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL...",
            help="A run, a model folder, or a text file of outputs; several are one system trained several times. "
            "A sweep: every point is compared with its continued baseline.",
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Option(help="Source text, one per line. Default: the test text of the run's recipe.", metavar="FILE"),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="Reference text, line by line. Without references, outputs are compared with a dense model's: that "
            "measures agreement, not quality.",
            metavar="FILE",
        ),
    ] = None,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(help="A run, a model folder or a text file to compare with; one for each MODEL.", metavar="MODEL"),
    ] = None,
    dense: Annotated[
        Path | None,
        typer.Option(
            help="Without references: the dense model (or a file of its outputs) to compare with. Default: the model "
            "that MODEL was fine-tuned from, else the first --baseline.",
            metavar="MODEL",
        ),
    ] = None,
    start: Annotated[
        list[str] | None,
        typer.Option(
            help="For several MODELs: a name for the dense model that each was fine-tuned from. Pairs with the same "
            "start count as one. Default: from the recipes; of files, equal baselines have the same start.",
            metavar="NAME",
        ),
    ] = None,
    documents: Annotated[
        bool | None,
        typer.Option(
            "--documents/--sentences",
            help="Resample documents, which end at blank lines, or sentences. Default: documents if the text has at "
            "least 10.",
        ),
    ] = None,
    margin: Annotated[float, typer.Option(help="The acceptable loss, in points of the metric.", metavar="X")] = 0.5,
    metric: Annotated[
        Metric | None,
        typer.Option(
            help="bleu, bleu_paper, chrf or rouge, for the verdict. Default: the recipe's, else bleu.", metavar="METRIC"
        ),
    ] = None,
    tokenize: Annotated[
        Tokenize | None,
        typer.Option(help="13a, intl, zh or none, for bleu. Default: the recipe's, else 13a.", metavar="NAME"),
    ] = None,
    languages: Annotated[
        str | None, typer.Option(help="Source and target language, to count negations: en-de.", metavar="SOURCE-TARGET")
    ] = None,
    beams: Annotated[
        int | None, typer.Option(help="Default: the recipe's, else the model's.", min=1, metavar="N")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Default: the recipe's, else the model's.", metavar="X")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Default: the recipe's, else the model's.", min=1, metavar="N")
    ] = None,
    source_lang: Annotated[
        str | None,
        typer.Option(help="For multilingual models: the tokenizer's name of the source language.", metavar="LANG"),
    ] = None,
    target_lang: Annotated[
        str | None,
        typer.Option(help="For multilingual models: the tokenizer's name of the target language.", metavar="LANG"),
    ] = None,
    controls: Annotated[
        bool, typer.Option("--controls", help="Also score with shuffled sources, and with empty ones.")
    ] = False,
    resamples: Annotated[int, typer.Option(help="Resamples of the bootstrap.", min=100, metavar="N")] = 2000,
    output: Annotated[
        Path | None,
        typer.Option(help="The folder to write. Default: evaluation/ in the first MODEL's folder.", metavar="FOLDER"),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Such as cpu or cuda. Default: a GPU if there is one.", metavar="DEVICE")
    ] = None,
    dtype: Annotated[
        Dtype | None,
        typer.Option(
            help="float32, bfloat16, float16, float64 or int8, for MODEL but not its baseline: int8 against the same "
            "model shows its cost.",
            metavar="TYPE",
        ),
    ] = None,
    threads: Threads = None,
) -> None:
    """Score a model's outputs, and say whether they are as good as a baseline's."""
    import torch

    from l0drop.decoding.folder import generation_of
    from l0drop.models.quiet import quiet_libraries
    from l0drop.study.evaluate import METRICS_FILE, Judged, Judging, has_documents, with_dense_outputs, write
    from l0drop.study.evaluate import evaluate as run_evaluation
    from l0drop.study.source_need import warning_of_evaluation
    from l0drop.study.sweep import SUMMARY, continued_run
    from l0drop.study.systems import System

    if threads is not None:
        torch.set_num_threads(threads)
    quiet_libraries()
    is_sweep = (models[0] / SUMMARY).is_file()
    if is_sweep:
        if len(models) > 1 or baseline or output is not None:
            raise ValueError(f"{models[0]}: is a sweep; each point is compared with the continued baseline in it")
        points = _points(models[0] / SUMMARY, dtype)
        continued = System(models[0] / continued_run(models[0]))
        groups = [([point], [continued]) for point in points]
    else:
        groups = [([System(path, dtype) for path in models], [System(path) for path in baseline or ()])]
    first = groups[0][0][0]
    folders = [_output(systems[0], output) for systems, _ in groups]
    if documents and source is None and first.recipe is not None and first.recipe.data.documents:
        raise ValueError("--documents: the examples of this run are joined lines, and are resampled as they are")
    text = _read(source, reference, first)
    if text.one_sided:
        log.print(f"[yellow]{text.one_sided} lines are blank on one side only; they are scored as they are[/]")
    recipe = first.recipe
    of_recipe: dict[str, Any] = {}
    judging: dict[str, Any] = {}
    if recipe is not None:
        of_recipe = generation_of(recipe)
        judging = {"metric": recipe.evaluate.metric, "tokenize": recipe.evaluate.tokenize}
    given: dict[str, Any] = {"num_beams": beams, "length_penalty": length_penalty, "max_new_tokens": max_new_tokens}
    given |= {"source_lang": source_lang, "target_lang": target_lang}
    generation = of_recipe | {name: value for name, value in given.items() if value is not None}
    asked = {"metric": metric and metric.value, "tokenize": tokenize and tokenize.value}
    by_document = has_documents(text) if documents is None else documents
    how = Judging(
        **judging | {name: value for name, value in asked.items() if value is not None}, margin=margin,
        documents=by_document, languages=_languages(languages), controls=controls, resamples=resamples,
    )  # fmt: skip
    if text.references is None:
        model = _dense(dense, first, groups[0][1])
        groups = [(systems, _others(systems, baselines, model)) for systems, baselines in groups]
        with decoding(len(text.sources)) as progress:
            prefix = recipe.data.source_prefix if recipe is not None and model.run is None else ""  # runs add theirs
            text = with_dense_outputs(text, model, generation, prefix=prefix, device=device, progress=progress)
    elif dense is not None:
        raise ValueError("--dense: is for text without references, and this text has them")
    known: dict[System, Judged] = {}
    found = []
    for (systems, baselines), folder in zip(groups, folders, strict=True):
        with decoding(len(text.sources)) as progress:
            metrics, files = run_evaluation(
                systems, baselines, text, how, generation, starts=start, device=device, progress=progress, known=known
            )
        if (folder / METRICS_FILE).exists():
            log.print(f"replaces the evaluation in {folder}", style="yellow", markup=False, soft_wrap=True)
        write(folder, metrics, files)
        found.append(metrics)
        for side in (run[side] for run in metrics["runs"] for side in ("system", "baseline") if side in run):
            if side.get("sources_cut"):
                warning = f"{side['name']}: {side['sources_cut']} sources were too long for the model and were cut"
                log.print(warning, style="yellow", markup=False, soft_wrap=True)
        if source_warning := warning_of_evaluation(metrics):
            name = metrics["runs"][0]["system"]["name"]
            log.print(f"{name}: {source_warning}", style="yellow", markup=False, soft_wrap=True)
        if not is_sweep:
            show(metrics)
        log.print(f"done: {folder / 'metrics.json'}", markup=False, soft_wrap=True)
    if is_sweep:
        show_sweep([point.path.name for (point, *_), _ in groups], found)


def _read(source: Path | None, reference: Path | None, first: "System") -> "EvaluationText":
    """The text to score: files, or the test text of the first system's recipe."""
    from l0drop.study.evaluate import read_files, read_test_text

    if source is not None:
        return read_files(source, reference)
    if reference is not None:
        raise ValueError("--reference: needs --source, whose lines it translates")
    if first.run is None:
        raise ValueError(f"--source is needed: {first.path} belongs to no run with test text")
    return read_test_text(first.run)


def _dense(given: Path | None, first: "System", baselines: "Sequence[System]") -> "System":
    """The dense model whose outputs stand in for references."""
    from l0drop.study.systems import System

    recipe = first.recipe
    start = None if recipe is None else recipe.model.init or recipe.model.pretrained
    if given is not None:
        return System(given)
    if start is not None and (recipe is None or recipe.model.init is None or Path(start).exists()):
        return System(Path(start))
    if baselines:
        return baselines[0]
    raise ValueError(
        f"--reference is missing, and the dense model that {first.path} was fine-tuned from is not known; give "
        "--reference FILE, or --dense MODEL to compare with its outputs"
    )


def _others(systems: "Sequence[System]", baselines: "Sequence[System]", dense: "System") -> "list[System]":
    """The baselines; none if they are the dense model itself, which agrees with its own outputs."""
    paths = [system.path.resolve() for system in (*systems, *baselines)]
    if dense.path.resolve() in paths[: len(systems)]:
        raise ValueError(f"{dense.path}: is the dense model itself; without references there is nothing to compare")
    return [] if dense.path.resolve() in paths else list(baselines)


def _points(summary: Path, dtype: str | None) -> "list[System]":
    from l0drop.study.sweep import finished_points
    from l0drop.study.systems import System

    return [System(summary.parent / point["run"], dtype) for point in finished_points(summary)]


def _output(system: "System", output: Path | None) -> Path:
    from l0drop.study.evaluate import check_folder

    if output is None and not system.is_model:
        raise ValueError(f"--output is needed: {system.path} is a file, so there is no folder to write to")
    if output is None and not system.path.exists():
        raise ValueError(f"--output is needed: {system.path} is a name on the hub and has no folder here")
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
    """A progress bar per decoding system."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=log) as bars:

        def begin(system: "System") -> Callable[[int], None]:
            task = bars.add_task(escape(system.path.name), total=lines)
            return lambda done: bars.update(task, advance=done)

        yield begin


def show(metrics: Mapping[str, Any]) -> None:
    """Print scores, tail risk and verdict; lines with paths are not broken."""
    runs = metrics["runs"]
    for number, run in enumerate(runs, 1):
        compared = f", compared with {run['baseline']['name']}" if "baseline" in run else ""
        start = f"{number}: " if len(runs) > 1 else ""
        sparsity = run["system"].get("sparsity")
        dropped = "" if sparsity is None else f" ({sparsity:.1%} dropped)"
        line = f"{start}{run['system']['name']}{dropped}{compared}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"{metrics['scored']} of {metrics['lines']} lines scored", highlight=False)
    if "references" in metrics:
        note = f"scored against {references(metrics)}: this measures agreement with that model, not quality"
        console.print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)
    console.print(scores_table(metrics))
    score = runs[0]["system"]["scores"][metrics["judging"]["metric"]]
    console.print(f"{score['name']}: {score['signature']}", style="dim", markup=False, highlight=False, soft_wrap=True)
    if (table := tail_table(metrics)) is not None:
        console.print(table)
    console.print(conclusion(metrics), markup=False, highlight=False)


def references(metrics: Mapping[str, Any]) -> str:
    """The dense outputs that stand in for references, with their beams: those of training may differ."""
    beams = metrics["dense"].get("decoding", {}).get("num_beams")
    return str(metrics["references"]) + ("" if beams is None else f" (beams: {beams})")


def scores_table(metrics: Mapping[str, Any]) -> RichTable:
    """All metrics of all systems, and the differences to their baselines."""
    from l0drop.report.table import Table, for_terminal

    runs = metrics["runs"]
    compared = "baseline" in runs[0]
    rows = []
    for number, run in enumerate(runs, 1):
        start = f"{number}: " if len(runs) > 1 else ""
        for name, score in run["system"]["scores"].items():
            cells = [start + score["name"], f"{score['value']:.2f}"]
            if compared:
                found = run["differences"][name]
                cells += [f"{found['baseline']:.2f}", f"{found['difference']:+.2f}"]
                cells.append(f"{found['lower']:+.2f}, {found['upper']:+.2f}")
            rows.append(cells)
        for name, score in run["system"].get("controls", {}).items():
            cells = [f"{start}{score['name']}, {name.replace('_', ' ')}", f"{score['value']:.2f}"]
            rows.append(cells + [""] * 3 * compared)
    kind = "agreement" if "references" in metrics else "score"
    head = ["metric", kind, *(("baseline", "difference", "95% bounds") if compared else ())]
    texts = ""
    if compared:
        found = runs[0]["differences"][metrics["judging"]["metric"]]
        texts = f"One-sided 95% bounds over {found['units']:,} {found['unit']}s, for this pair of models only."
    return for_terminal(Table(head, rows, texts))


def tail_table(metrics: Mapping[str, Any]) -> RichTable | None:
    """Tail risk of the first system compared with its baseline, or with the dense outputs; None without either."""
    from l0drop.report.evaluation import tail_rows
    from l0drop.report.table import Table, for_terminal

    run = metrics["runs"][0]
    found = run if "tail" in run else run.get("agreement")
    if found is None:
        return None
    of_pair = "tail" in run
    other = "baseline" if of_pair else "dense"
    reference = "dense output" if "references" in metrics else "human reference"
    rows = [[with_options(cell) for cell in row] for row in tail_rows(found["tail"], reference)]
    head = ["tail risk", "system", other, reference]
    if not of_pair:  # baseline and reference are the same outputs, so none can gain
        chrf = found["tail"]["chrf"]
        rows[:2] = [[f"sentences under {100 - chrf['threshold']:.0f} chrF", f"{chrf['losing']:.1%}", "", ""]]
        head, rows = head[:3], [row[:3] for row in rows]
    same = f"{found['same_outputs']} of {metrics['scored']} outputs are identical to the {other} model's."
    seeds = "" if len(metrics["runs"]) == 1 else f" Of the first of {len(metrics['runs'])} systems."
    return for_terminal(Table(head, rows, same + seeds).without_empty_columns())


def conclusion(metrics: Mapping[str, Any]) -> str:
    """The verdict in words, or why there is none."""
    from l0drop.study.evaluate import main_difference, score_name
    from l0drop.study.verdict import verdict

    if "differences" in metrics["runs"][0]:
        return verdict(main_difference(metrics), score_name(metrics)).sentence
    if "references" in metrics:
        return "no verdict: agreement with the dense model is not quality; a verdict needs references"
    return "no verdict: there is no --baseline to compare with"


def show_sweep(names: Sequence[str], found: Sequence[Mapping[str, Any]]) -> None:
    """Print score, verdict and tail risk of every point of a sweep."""
    from l0drop.report.table import Table, for_terminal
    from l0drop.study.evaluate import main_difference, score_name
    from l0drop.study.verdict import verdict

    metric = score_name(found[0])
    rows = []
    if "baseline" in found[0]["runs"][0]:
        dense = found[0]["runs"][0]["baseline"]["scores"][found[0]["judging"]["metric"]]["value"]
        rows.append(["dense, continued", "", f"{dense:.2f}", "", "", ""])
    for name, metrics in zip(names, found, strict=True):
        run = metrics["runs"][0]
        score = run["system"]["scores"][metrics["judging"]["metric"]]["value"]
        cells = [name, _percent(run["system"].get("sparsity")), f"{score:.2f}"]
        if "differences" in run:
            entry = main_difference(metrics)
            bounds = f"[{entry['lower']:+.2f}, {entry['upper']:+.2f}]"
            cells += [f"{entry['difference']:+.2f} {bounds}", verdict(entry, metric).label]
            cells.append(_percent(run["tail"]["chrf"]["losing"]))
        else:
            cells += ["", "no verdict", _percent(run["agreement"]["tail"]["chrf"]["losing"])]
        rows.append(cells)
    threshold = (found[0]["runs"][0].get("tail") or found[0]["runs"][0]["agreement"]["tail"])["chrf"]["threshold"]
    head = ["model", "dropped", metric, "difference [95% bounds]", "verdict", f"lose over {threshold:.0f} chrF"]
    note = (
        f"{found[0]['scored']:,} sentences. Differences are to dense, continued. Bounds are one-sided and over texts: "
        "they and the verdicts speak for these models only. Each point is tested separately; among many, one may pass "
        "by chance."
    )
    if "differences" in found[0]["runs"][0]:
        note += f" Non-inferior: the lower bound is above -{found[0]['judging']['margin']:g} (--margin)."
    if "references" in found[0]:
        note += f" Scored against {references(found[0])}: agreement with that model, not quality."
    table = for_terminal(Table(head, rows, note, prose=frozenset({"verdict"})))
    table.columns[0].no_wrap = True
    console.print(table)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
