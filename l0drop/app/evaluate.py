"""`l0drop evaluate`: scores; compared with a baseline, also a verdict and tail risk. For text; audio goes on to
evaluate_speech.py."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from l0drop.app.command import with_options
from l0drop.app.evaluate_speech import evaluate_speech, reads_audio, refuse
from l0drop.app.options import Dtype, Threads, given, use_threads
from l0drop.app.terminal import console, progress_bars, remark, say, stopped_by_user

if TYPE_CHECKING:
    from l0drop.runs.evaluation import Evaluation
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
            "A sweep: every point is compared with its continued baseline. For audio, several are different systems.",
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
        typer.Option(
            help="A run, a model folder or a text file to compare with; one for each MODEL. For audio: one for all.",
            metavar="MODEL",
        ),
    ] = None,
    audio: Annotated[
        Path | None,
        typer.Option(
            help="For audio: a list of clips, TSV (file, speaker, text) or JSON lines. Default: the test clips of the "
            "run's recipe.",
            metavar="FILE",
        ),
    ] = None,
    trim: Annotated[
        float | None,
        typer.Option(
            help="For audio: cut off beginnings and ends that are this many decibels below the loudest moment.",
            metavar="DB",
        ),
    ] = None,
    keep: Annotated[
        list[float] | None,
        typer.Option(
            help="For audio: also score the first MODEL with this share of its rows kept; repeat it for a curve.",
            metavar="SHARE",
        ),
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
    """Score a model's outputs, and say whether they are as good as a baseline's.

    Texts: BLEU, chrF and ROUGE. Audio: word and character error rates, by speaker too.
    """
    from l0drop.models.quiet import quiet_libraries
    from l0drop.report.evaluation import sweep_table
    from l0drop.runs.evaluation import EvaluationFolder
    from l0drop.runs.table import for_terminal
    from l0drop.study.evaluation_job import EvaluationJob

    use_threads(threads)
    quiet_libraries()
    search = {"num_beams": beams, "length_penalty": length_penalty, "max_new_tokens": max_new_tokens}
    text_only = {"source": source, "reference": reference, "dense": dense, "start": start, "documents": documents,
                 "metric": metric, "tokenize": tokenize, "languages": languages, "controls": controls,
                 "source_lang": source_lang, "target_lang": target_lang}  # fmt: skip
    if reads_audio(models[0], audio):
        refuse(text_only, "text")
        judged = given(margin=margin, resamples=resamples, trim=trim)
        evaluate_speech(models, audio, baseline or [], judged, given(**search), keep or [], output, device, dtype)
        return
    refuse({"trim": trim, "keep": keep}, "audio")
    judging = given(
        metric=metric and metric.value, tokenize=tokenize and tokenize.value, margin=margin,
        languages=_languages(languages), controls=controls, resamples=resamples,
    )  # fmt: skip
    generation = given(**search, source_lang=source_lang, target_lang=target_lang)
    job = EvaluationJob(
        models, baseline or (), source, reference, dense, start, documents, judging, generation, output, device, dtype,
    )  # fmt: skip
    found: dict[str, Evaluation] = {}
    for folder, evaluation in job.run(remark, decoding):
        found[folder.parent.name] = evaluation
        for warning in warnings(evaluation):
            remark(warning)
        if job.sweep is None:
            show(evaluation)
        say(f"done: {EvaluationFolder(folder).metrics}")
    if job.sweep is not None:
        table = sweep_table(list(found), list(found.values()))
        shown = for_terminal(replace(table, note=with_options(table.note)))
        shown.columns[0].no_wrap = True
        console.print(shown)


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
    with progress_bars() as bars:

        def begin(system: "System") -> Callable[[int], None]:
            task = bars.add_task(escape(system.path.name), total=lines)
            return lambda done: bars.update(task, advance=done)

        yield begin


def warnings(evaluation: "Evaluation") -> "Iterator[str]":
    """Sources that were cut, and a model that hardly uses its source."""
    from l0drop.study.source_need import warning_of_evaluation

    for record in (side for run in evaluation.runs for side in (run.system, run.baseline) if side is not None):
        if record.sources_cut:
            yield f"{record.name}: {record.sources_cut} sources were too long for the model and were cut"
    if warning := warning_of_evaluation(evaluation):
        yield f"{evaluation.first.system.name}: {warning}"


def show(evaluation: "Evaluation") -> None:
    """Print scores, tail risk and verdict; lines with paths are not broken."""
    from l0drop.report.evaluation import conclusion, dense_references, scores_table, tail_table
    from l0drop.runs.table import for_terminal

    runs, agrees = evaluation.runs, evaluation.references is not None
    for number, run in enumerate(runs, 1):
        compared = "" if run.baseline is None else f", compared with {run.baseline.name}"
        start = f"{number}: " if len(runs) > 1 else ""
        dropped = "" if run.system.sparsity is None else f" ({run.system.sparsity:.1%} dropped)"
        console.print(f"{start}{run.system.name}{dropped}{compared}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{evaluation.scored} of {evaluation.lines} lines scored", highlight=False)
    if agrees:
        note = f"scored against {dense_references(evaluation)}: this measures agreement with that model, not quality"
        console.print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)
    console.print(for_terminal(scores_table(evaluation, "agreement" if agrees else "score", "baseline")))
    signature = f"{evaluation.score.name}: {evaluation.score.signature}"
    console.print(signature, style="dim", markup=False, highlight=False, soft_wrap=True)
    other, reference = (
        "baseline" if evaluation.is_compared else "dense",
        "dense output" if agrees else "human reference",
    )
    if (table := tail_table(evaluation, "system", other, reference)) is not None:
        rows = [[with_options(cell) for cell in row] for row in table.rows]
        console.print(for_terminal(replace(table, rows=rows)))
    console.print(with_options(conclusion(evaluation)), markup=False, highlight=False)
