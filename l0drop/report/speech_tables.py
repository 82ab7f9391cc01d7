"""The tables of a study of speech, for the terminal and for reports."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from l0drop.data.speech_metrics import PASSAGE
from l0drop.runs.analysis import Bin, Rate
from l0drop.runs.evaluation import Missing
from l0drop.runs.speech import SpeechAnalysis, SpeechEvaluation, SpeechSystem, SpeechTail
from l0drop.runs.table import Table, percent

BASELINE = "baseline"


def names(evaluation: SpeechEvaluation) -> list[str]:
    """A short name for each system, and the baseline's at the end: those of folders, if they differ."""
    paths = [one.name for one in _sides(evaluation)]
    short = [Path(path).name or path for path in paths]
    return short if len(set(short)) == len(short) else paths


def errors_table(evaluation: SpeechEvaluation) -> Table:
    """Error rates and sparsity of every system."""
    rows = []
    for name, one in zip(names(evaluation), _sides(evaluation), strict=True):
        found = one.differences.get("wer")
        rows.append([
            name, percent(one.sparsity), percent(one.sparsity_of_all),
            *(f"{one.scores[metric].value:.2f}" for metric in ("wer", "cer")),
            "" if found is None else f"{found.difference:+.2f} [{found.interval[0]:+.2f}, {found.interval[1]:+.2f}]",
        ])  # fmt: skip
    head = ["model", "dropped", "of all rows", "WER", "CER", "difference in WER [95% interval]"]
    found = evaluation.systems[0].differences.get("wer")
    parts = [
        f"{evaluation.clips:,} clips, {evaluation.seconds / 60:.1f} minutes of audio.",
        "Dropped: of the rows that audio covers; of all rows: with the padding of the window.",
    ]
    if evaluation.silent:
        parts.append(f"{evaluation.silent} clips without sound have a blank transcript.")
    if evaluation.long:
        parts.append(f"{evaluation.long} recordings have more than one window; they are decoded with timestamps.")
    if evaluation.seconds_trimmed is not None:
        parts.append(
            f"Quiet beginnings and ends, {evaluation.seconds_trimmed / 60:.1f} minutes of audio, were cut off in front "
            f"of every model ({evaluation.judging.trim:g} dB below the loudest moment)."
        )
    if found is not None:
        within = f" within {found.speakers} speakers" if found.speakers else ", whose speakers are not known"
        parts.append(
            f"Differences are to {names(evaluation)[-1]}; above 0 is worse. Intervals: paired bootstrap over clips"
            f"{within}, {found.resamples:,} resamples, for these models only."
        )
    return Table(head, rows, " ".join(parts)).without_empty_columns()


def speakers_table(evaluation: SpeechEvaluation) -> Table | None:
    """The word error rate of each speaker, of the first system and the baseline; None if there are not two speakers."""
    system, baseline = evaluation.systems[0], evaluation.baseline
    if len(system.speakers) < 2:
        return None
    rows = []
    for speaker, found in system.speakers.items():
        cells = [speaker, f"{found.clips:,}", f"{found.words:,}", f"{found.wer:.2f}"]
        if baseline is not None:
            other = baseline.speakers[speaker].wer
            cells += [f"{other:.2f}", f"{found.wer - other:+.2f}"]
        rows.append(cells)
    named = names(evaluation)
    head = ["speaker", "clips", "words", f"WER, {named[0]}"]
    head += [] if baseline is None else [f"WER, {named[-1]}", "difference"]
    return Table(head, rows)


def speech_tail_table(evaluation: SpeechEvaluation) -> Table | None:
    """Tail risk of every system; None without a baseline."""
    tails = [one.tail for one in evaluation.systems]
    first = tails[0]
    if first is None or evaluation.baseline is None:
        return None
    named = names(evaluation)
    rows = [
        [name, f"{tail.rising} / {tail.falling}", *_odd(tail, "system"), _lost(tail.numbers), _lost(tail.names)]
        for name, tail in zip(named, tails, strict=False)
        if tail is not None
    ]  # fmt: skip
    rows.append([named[-1], "", *_odd(first, BASELINE), "", ""])
    threshold = f"{first.threshold:.0f}"
    head = [
        "model",
        f"clips up / down over {threshold} points",
        "empty / runaway",
        "words skipped",
        "numbers lost",
        "names lost",
    ]
    note = (
        f"Up / down: clips whose word error rate rises or falls by more than {threshold} points against {named[-1]}. "
        f"Runaway: more than twice as long as the reference. Skipped: in passages of at least {PASSAGE} words in a row "
        "that the transcript lacks. Lost: in the transcript of "
        f"{named[-1]} and in the reference, but not in this model's. Names: capitalised words inside a sentence."
    )
    return Table(head, rows, note).without_empty_columns()


def _odd(tail: SpeechTail, side: str) -> tuple[str, str]:
    """Empty and runaway transcripts, and words in skipped passages; blank where an older file does not say."""
    return f"{tail.empty[side]} / {tail.runaways[side]}", "" if tail.skipped is None else f"{tail.skipped[side]:,}"


def dial_table(evaluation: SpeechEvaluation) -> Table | None:
    """The first system at several settings of the dial; None if it was not turned."""
    if not evaluation.curve:
        return None
    baseline = None if evaluation.baseline is None else evaluation.baseline.scores["wer"].value
    rows = [
        [f"{row.keep:g}", f"{row.sparsity:.1%}", f"{row.score.value:.2f}",
         "" if baseline is None else f"{row.score.value - baseline:+.2f}", f"{row.cpu_seconds:.1f}"]
        for row in evaluation.curve
    ]  # fmt: skip
    named = names(evaluation)
    note = f"{named[0]} with the share of rows to keep set at run time."
    if baseline is not None:
        note += f" Differences are to {named[-1]}."
    return Table(["keep", "dropped", "WER", "difference", "CPU seconds"], rows, note).without_empty_columns()


def worst_table(evaluation: SpeechEvaluation) -> Table | None:
    """The clips whose word error rate rises most, of the first system; None without any."""
    tail = evaluation.systems[0].tail
    if tail is None or not tail.worst:
        return None
    rows = [[one.file, f"{one.line:,}", f"{one.difference:+.1f}"] for one in tail.worst]
    return Table(
        ["clip", "line of the list", "change of its WER, points"], rows, "The largest rises of the first model."
    )


def time_table(evaluation: SpeechEvaluation) -> Table | None:
    """End-to-end times of the systems that decoded; None if none did."""
    sides = list(zip(names(evaluation), _sides(evaluation), strict=True))
    timed = [(name, one.time) for name, one in sides if one.time is not None]
    if not timed:
        return None
    reference = None if evaluation.baseline is None else evaluation.baseline.time
    rows = [
        [name, f"{time.cpu_seconds:.1f}", f"{time.wall_seconds:.1f}",
         f"{1000 * time.cpu_seconds / time.audio_seconds:.1f}" if time.audio_seconds else "",
         "" if reference is None else f"{reference.cpu_seconds / time.cpu_seconds:.2f}"]
        for name, time in timed
    ]  # fmt: skip
    head = ["model", "CPU seconds", "wall seconds", "CPU ms per second of audio", "speed-up, CPU"]
    note = (
        f"From samples to text, in batches of {timed[0][1].batch_size} clips, measured once while evaluating; other "
        "work on the machine counts too. Speed-up: over the last row."
    )
    return Table(head, rows, note).without_empty_columns()


def rows_tables(analysis: SpeechAnalysis) -> Iterator[tuple[str, Table]]:
    """The share of dropped rows, by kind of row."""
    kinds = {"covered by audio": analysis.covered, "padding": analysis.padding}
    skipped = [f"{count} {what}" for count, what in ((analysis.silent, "silent"), (analysis.longer, "long")) if count]
    note = f"{analysis.clips:,} clips, {analysis.seconds / 60:.1f} minutes of audio."
    if skipped:
        note += f" Left out: {' and '.join(skipped)} clips (long: of more than one window)."
    yield "dropped rows", _rates("rows", kinds, note)
    if analysis.words:
        note = (
            f"Covered rows by their place in the words of {analysis.dense}, at the times of its attention. Edges: the "
        )
        yield "by place in words", _rates("place", analysis.words, note + "first and the last 40 ms of a word.")
    for title, head, found, form in (
        ("by energy", "energy in the clip", analysis.energy, ".0%"),
        ("by position", "seconds in the window", analysis.position, "g"),
        ("after the end of the audio", "seconds after the end", analysis.after_end, "g"),
    ):
        labelled: dict[str, Rate] = {span(one, form): one for one in found.bins}
        yield title, _rates(head, labelled, f"{found.what[0].upper()}{found.what[1:]}.")


def span(found: Bin, form: str) -> str:
    """A bin's name."""
    first = format(round(found.first, 4), form)
    return f"{first}+" if found.last is None else f"{first} to {format(round(found.last, 4), form)}"


def _rates(head: str, rates: dict[str, Rate], note: str) -> Table:
    rows = [[name, f"{rate.tokens:,}", percent(rate.sparsity)] for name, rate in rates.items()]
    return Table([head, "number of rows", "dropped"], rows, note)


def _sides(evaluation: SpeechEvaluation) -> Sequence[SpeechSystem]:
    return [*evaluation.systems, *([] if evaluation.baseline is None else [evaluation.baseline])]


def _lost(found: Missing) -> str:
    return "none there" if not found.expected else f"{found.lost} of {found.expected:,}"
