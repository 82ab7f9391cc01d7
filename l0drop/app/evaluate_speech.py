"""`l0drop evaluate` of models that read audio."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from l0drop.app.terminal import console, log, progress_bars

if TYPE_CHECKING:
    from l0drop.runs.speech import SpeechEvaluation
    from l0drop.study.systems import System


def reads_audio(model: Path, audio: Path | None) -> bool:
    """Whether a command is about audio: a list of clips was given, or the model in this folder is a Whisper."""
    from l0drop.decoding.loading import is_speech
    from l0drop.runs.sweep import SweepFolder

    return audio is not None or (model.is_dir() and not SweepFolder(model).is_sweep and is_speech(model))


def refuse(options: dict[str, Any], kind: str) -> None:
    """ValueError if an option for the other kind of input was given."""
    given = [name for name, value in options.items() if value not in (None, False, [], ())]
    if given:
        shown = ", ".join(f"`{name}`" for name in given)
        raise ValueError(f"{shown}: for {kind} only; leave {'it' if len(given) == 1 else 'them'} out")


def evaluate_speech(
    models: list[Path],
    audio: Path | None,
    baseline: list[Path],
    judging: dict[str, Any],
    generation: dict[str, Any],
    keep: list[float],
    output: Path | None,
    device: str | None,
    dtype: str | None,
) -> None:
    """Transcribe, score, compare, and print the tables."""
    from l0drop.runs.speech import SpeechJudging
    from l0drop.study.speech.evaluate import SpeechJob

    if len(baseline) > 1:
        raise ValueError("`baseline`: for audio there is one, which every MODEL is compared with")
    reference = baseline[0] if baseline else None
    job = SpeechJob(
        models, audio, reference, SpeechJudging(**judging), generation, keep, output=output, device=device, dtype=dtype
    )
    with progress_bars() as bars:

        def begin(system: "System", clips: int) -> Callable[[int], None]:
            task = bars.add_task(escape(system.path.name), total=clips)
            return lambda done: bars.update(task, advance=done)

        folder, found = job.run(begin)
    show(found)
    log.print(f"done: {folder / 'metrics.json'}", markup=False, soft_wrap=True)


def show(evaluation: "SpeechEvaluation") -> None:
    """Print error rates, speakers, tail risk, times and verdicts."""
    from l0drop.report.speech_tables import (
        dial_table,
        errors_table,
        names,
        speakers_table,
        speech_tail_table,
        time_table,
    )
    from l0drop.runs.table import for_terminal

    for title, table in (
        (None, errors_table(evaluation)),
        ("along the dial", dial_table(evaluation)),
        ("by speaker", speakers_table(evaluation)),
        ("tail risk", speech_tail_table(evaluation)),
        ("time, end to end", time_table(evaluation)),
    ):
        if table is not None:
            console.print(for_terminal(table, title))
    for score in evaluation.systems[0].scores.values():
        signature = f"{score.name}: {score.signature}"
        console.print(signature, style="dim", markup=False, highlight=False, soft_wrap=True)
    for name, system in zip(names(evaluation), evaluation.systems, strict=False):
        verdict = system.verdict or "no verdict: there is no --baseline to compare with"
        console.print(f"{name}: {verdict}", markup=False, highlight=False, soft_wrap=True)
