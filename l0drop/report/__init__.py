"""The report on a run, a sweep or the demo: report.html, self-contained, and report.md for pull requests.

findings.py    the content, from the files of a folder; nothing is measured here
summary.py     the verdict in three sentences
evaluation.py  tables of scores, differences and tail risk
sweep.py       the table of a sweep that was trained
page.py        HTML, around page.html
markdown.py    Markdown, with tables in place of figures
figures/       figures as SVG
picture.py     sentences with dropped pieces struck out, as SVG

Of a run on audio: speech_findings.py, speech_tables.py, speech_page.py.
"""

from pathlib import Path

from l0drop.data.whole import write_whole

HTML, MARKDOWN = "report.html", "report.md"


def write_report(folder: Path, margin: float | None = None) -> list[Path]:
    """Draw the figures, and write the report as HTML and as Markdown; returns the files written.

    margin: for the verdicts; default: the margin of the evaluation.
    """
    from l0drop.report.figures import Drawing, difference_curve, draw_all  # needs matplotlib, which is optional
    from l0drop.report.findings import gather
    from l0drop.report.markdown import markdown
    from l0drop.report.page import page
    from l0drop.report.speech_findings import gather_speech, is_audio
    from l0drop.report.speech_page import speech_markdown, speech_page

    if is_audio(folder):
        heard = gather_speech(folder, margin)
        return _written(folder, {HTML: speech_page(heard, draw_all(folder)), MARKDOWN: speech_markdown(heard)})
    findings = gather(folder, margin)
    drawings: dict[str, Drawing] = {}
    for path in findings.analysed:  # figures of a sweep as a whole come before those of one model
        for drawing in draw_all(path):
            drawings.setdefault(drawing.name, drawing)
    if len(findings.judged) > 1:
        curve = difference_curve(findings)
        drawings[curve.name] = curve
    return _written(folder, {HTML: page(findings, list(drawings.values())), MARKDOWN: markdown(findings)})


def _written(folder: Path, files: dict[str, str]) -> list[Path]:
    for name, content in files.items():
        write_whole(folder / name, content)
    return [folder / name for name in files]
