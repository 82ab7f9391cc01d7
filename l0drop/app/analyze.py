"""`l0drop analyze`: the dropped tokens and the attention of a sparse run, as numbers and figures."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from l0drop.app.evaluate_speech import reads_audio, refuse
from l0drop.app.options import ClipList, Threads, use_threads
from l0drop.app.terminal import console, progress_bars, remark, say, stopped_by_user

if TYPE_CHECKING:
    from l0drop.runs.analysis import Analysis, SweepAnalysis


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
    audio: ClipList = None,
    sentences: Annotated[
        int | None,
        typer.Option(help="The number of sentences or clips, from the start. Default: all.", min=2, metavar="N"),
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
        list[int] | None,
        typer.Option(
            help="Draw the attention map of this sentence, counted from 0; for audio, this clip's spectrogram.",
            metavar="N",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for analysis.json and figures/. Default: the run's folder.", metavar="FOLDER"),
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="For a sweep: analyse no point in full.")] = False,
    zero_row: Annotated[
        bool,
        typer.Option(
            "--zero-row",
            help="For gating mask: also measure attention mass with a zero row for dropped words, which the model was "
            "not trained with (Figure 6 of the paper).",
        ),
    ] = False,
    threads: Threads = None,
) -> None:
    """Measure what sparse runs drop, where attention goes, and what closing other gates costs; draw figures.

    For a sweep, measure groups, attention and entropy of all points, and all parts of one point: the one that the
    report shows if the sweep was evaluated, else the learned gate whose sparsity is nearest to half.

    For a Whisper, measure which rows it drops: by energy, by position, inside words and at their edges; draw
    spectrograms with dropped rows in grey.

    An analysis replaces the earlier one and its figures. With --only, other parts stay if models, text and settings are
    the same.
    """
    from l0drop.models.quiet import quiet_libraries
    from l0drop.study.analysis.job import AnalysisJob
    from l0drop.study.analysis.subject import Reading

    use_threads(threads)
    if output is not None and len(folders) > 1:
        raise ValueError(f"--output: one folder for {len(folders)} analyses; give them one at a time")
    quiet_libraries()
    if reads_audio(Path(folders[0]), audio):
        text_only = {"entmax": entmax, "source": source, "reference": reference, "language": language, "only": only,
                     "brief": brief, "zero_row": zero_row}  # fmt: skip
        refuse(text_only, "text")
        for folder in folders:
            analyze_speech(folder, audio, baseline, sentences, show or (), output)
        return
    reading = Reading(source, reference, sentences, language)
    job = AnalysisJob(reading, baseline, entmax, only or (), show or (), output, brief, zero_row)
    for folder in folders:
        with bars() as bar:
            for result, target in job.run(folder, bar, say):
                _show(result, target)


def _show(result: "Analysis | SweepAnalysis", folder: Path) -> None:
    """Draw the figures of all parts in a folder, and print the new tables."""
    from l0drop.report.figures import draw_all
    from l0drop.runs.analysis import SweepAnalysis
    from l0drop.runs.run import RunFolder
    from l0drop.runs.table import for_terminal
    from l0drop.study.analysis.tables import overview_tables, tables
    from l0drop.study.source_need import warning_of_analysis

    drawn = draw_all(folder)
    text = result.text
    targets = "human references" if text.target == "reference" else text.target
    console.print(f"{text.sentences:,} sentences, targets: {targets}", highlight=False)
    if isinstance(result, SweepAnalysis):
        for title, table in overview_tables(result):
            console.print(for_terminal(table, f"{Path(result.sweep).name}: {title}", compact=True))
    else:
        for title, table in tables(result):
            console.print(for_terminal(table, title))
    points = result.points if isinstance(result, SweepAnalysis) else [result]
    if warning := warning_of_analysis(result):
        remark(warning)
    for part, why in {part: why for point in points for part, why in point.left_out.items()}.items():
        remark(f"omitted: {part} ({why})")
    if not isinstance(result, SweepAnalysis) and "baseline" in result.missing:
        remark(f"not compared with a dense model ({result.missing['baseline']})")
    say(f"{RunFolder(folder).analysis}, and {len(drawn)} figures in {folder / 'figures'}")


def analyze_speech(
    folder: str, audio: Path | None, baseline: str | None, clips: int | None, show: Sequence[int], output: Path | None
) -> None:
    """Measure the dropped rows of a Whisper, write analysis.json, draw spectrograms, and print tables."""
    from l0drop.decoding.folder import locate_model
    from l0drop.report.figures import draw_all
    from l0drop.report.speech_tables import rows_tables
    from l0drop.runs.run import RunFolder
    from l0drop.runs.table import for_terminal
    from l0drop.study.speech.analysis import SpeechAnalysisJob

    target = output or locate_model(folder)[1] or Path(folder)
    if not target.is_dir() and output is None:
        raise ValueError(f"`output`: {folder} is not a folder here; name one for analysis.json")
    with progress_bars() as progress:

        def begin(total: int) -> Callable[[int], None]:
            task = progress.add_task("clips", total=total)
            return lambda done: progress.update(task, advance=done)

        result = SpeechAnalysisJob(folder, audio, baseline, clips, show).run(begin)
    result.write(RunFolder(target).analysis)
    drawn = draw_all(target)
    for title, table in rows_tables(result):
        console.print(for_terminal(table, title))
    for part, why in result.left_out.items():
        remark(f"omitted: {part} ({why})")
    say(f"{RunFolder(target).analysis}, and {len(drawn)} figures in {target / 'figures'}")


@contextmanager
def bars() -> Iterator[Callable[[str, int], Any]]:
    """Progress bars, one for each step of the analysis."""
    with progress_bars() as progress:

        @contextmanager
        def bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
            task = progress.add_task(title, total=total or None)
            yield lambda done: progress.update(task, advance=done)
            progress.update(task, total=progress.tasks[task].completed)

        yield bar
