"""The report on a run with audio, as a page and as Markdown."""

from collections.abc import Iterator, Sequence

from l0drop.report import speech_tables
from l0drop.report.figures import Drawing
from l0drop.report.page import THEORY, assembled, figure, listed, settings
from l0drop.report.speech_findings import SpeechFindings, WorstClip, training_table
from l0drop.runs import escape
from l0drop.runs.escape import html
from l0drop.runs.table import Table, as_html, as_markdown

CURVE, SPEED, SPECTROGRAM = "error-curve", "speed", "spectrogram"
"""Names of figures; further spectrograms have a number behind theirs."""
OPEN = 3
"""Worst clips that are shown without a click."""


def speech_page(findings: SpeechFindings, drawings: Sequence[Drawing]) -> str:
    """The whole page: verdict, curve and spectrograms first, tables after them, theory last."""
    tables = _tables(findings)
    made_by = findings.provenance.get("training", {})
    software = (f"{key} {made_by[key]}" for key in ("l0drop", "commit") if made_by.get(key))
    sections = {
        "Verdict": _verdict(findings),
        "WER and sparsity": _figures(drawings, CURVE) + _shown(tables.get("WER and sparsity")),
        "Spectrograms": _figures(drawings, SPECTROGRAM),
        "Speakers": _shown(tables.get("Speakers")),
        "Tail risk": _shown(tables.get("Tail risk")) + _worst(findings.worst),
        "Time": _shown(tables.get("Time")) + _figures(drawings, SPEED),
        "Dropped rows": _dropped(findings),
        "Training": _shown(tables.get("Training")),
        "Settings": settings(findings.provenance, findings.signatures, findings.recipe),
        "Not in this report": listed(html(note) for note in findings.missing),
        "Background": "".join(figure(drawing) for drawing in drawings if drawing.name in THEORY),
    }
    return assembled(findings.name, ["A run on audio", *software], sections)


def speech_markdown(findings: SpeechFindings) -> str:
    """The same as Markdown, with tables in place of figures and without transcripts."""
    parts = [f"# {escape.markdown(findings.name)}", escape.markdown(" ".join(findings.summary))]
    if findings.evaluation is not None:
        parts.append(as_markdown(speech_tables.errors_table(findings.evaluation)))
    if len(findings.verdicts) > 1:
        verdicts = (f"- {escape.markdown(f'{name}: {text}')}" for name, text in findings.verdicts.items())
        parts.append("\n".join(verdicts))
    tables = _tables(findings)
    if findings.evaluation is not None and (worst := speech_tables.worst_table(findings.evaluation)) is not None:
        tables["Worst clips"] = worst
    for title, table in (*tables.items(), *_rows(findings)):
        parts += [f"## {escape.markdown(title)}", as_markdown(table)]
    if findings.signatures:
        signatures = (f"- {escape.markdown(name)}: {escape.code(text)}" for name, text in findings.signatures.items())
        parts += ["## Signatures", "\n".join(signatures)]
    if findings.missing:
        parts += ["## Not in this report", "\n".join(f"- {escape.markdown(note)}" for note in findings.missing)]
    return "\n\n".join(parts) + "\n"


def _tables(findings: SpeechFindings) -> dict[str, Table]:
    """The tables below the verdict, by section."""
    found: dict[str, Table | None] = {}
    if (evaluation := findings.evaluation) is not None:
        found = {
            "WER and sparsity": speech_tables.dial_table(evaluation),
            "Speakers": speech_tables.speakers_table(evaluation),
            "Tail risk": speech_tables.speech_tail_table(evaluation),
            "Time": speech_tables.time_table(evaluation),
        }
    if findings.trained is not None:
        found["Training"] = training_table(findings.trained)
    return {title: table for title, table in found.items() if table is not None}


def _rows(findings: SpeechFindings) -> Iterator[tuple[str, Table]]:
    if findings.analysis is not None:
        for title, table in speech_tables.rows_tables(findings.analysis):
            yield f"{title[0].upper()}{title[1:]}", table


def _verdict(findings: SpeechFindings) -> str:
    calibration = None if findings.trained is None else findings.trained.calibration
    parts = []
    if calibration is not None and calibration.warning is not None:
        parts.append(f'<p class="warning">{html(calibration.warning)}</p>')
    parts.append(f'<p class="summary">{html(" ".join(findings.summary))}</p>')
    if findings.evaluation is not None:
        parts.append(as_html(speech_tables.errors_table(findings.evaluation)))
    if len(findings.verdicts) > 1:
        shown = findings.verdicts.items()
        parts.append(listed(f"<strong>{html(name)}:</strong> {html(text)}" for name, text in shown))
        parts.append("<p>Sections below are of the first model, unless they name others.</p>")
    return "\n".join(parts)


def _dropped(findings: SpeechFindings) -> str:
    return "".join(f"<h3>{html(title)}</h3>{as_html(table)}" for title, table in _rows(findings))


def _worst(clips: Sequence[WorstClip]) -> str:
    if not clips:
        return ""
    shown = [_clip(clip) for clip in clips]
    rest = shown[OPEN:]
    more = f"<details><summary>{len(rest)} more clips</summary>{''.join(rest)}</details>" if rest else ""
    return f"<h3>Clips whose word error rate rises most</h3>{''.join(shown[:OPEN])}{more}"


def _clip(clip: WorstClip) -> str:
    change = clip.change
    lines = "".join(
        f'<dt>{html(name)}</dt><dd dir="auto">{html(text) or _EMPTY}</dd>' for name, text in clip.transcripts.items()
    )
    head = f"{change.file}, line {change.line:,}: {change.difference:+.1f} points"
    return f'<article><p class="dim">{html(head)}</p>{f"<dl>{lines}</dl>" if lines else ""}</article>'


_EMPTY = '<span class="dim">(empty)</span>'


def _figures(drawings: Sequence[Drawing], name: str) -> str:
    return "".join(figure(one) for one in drawings if one.name == name or one.name.startswith(f"{name}-"))


def _shown(table: Table | None) -> str:
    return "" if table is None else as_html(table)
