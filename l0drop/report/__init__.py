"""One page that says what a run or a sweep has shown: report.html, whole in itself, and report.md for pull requests.

findings.py   what there is to say, from the files of a folder; nothing is measured here
agreement.py  which evaluations may stand in one table
words.py      the summary, and the cells of the tables
page.py       HTML, around page.html
markdown.py   Markdown, with tables where the page has figures
"""

from pathlib import Path

from l0drop.data.whole import write_whole
from l0drop.report.figures import Drawing, draw_all
from l0drop.report.findings import gather
from l0drop.report.markdown import markdown
from l0drop.report.page import page

HTML, MARKDOWN = "report.html", "report.md"


def write_report(folder: Path, margin: float | None = None) -> list[Path]:
    """Draw the figures that the folder's files give, and write both forms of the report; the files written.

    `margin` judges the differences anew; left out, that of the evaluation.
    """
    findings = gather(folder, margin)
    drawings: dict[str, Drawing] = {}
    for place in findings.analysed:  # what a sweep shows of all its points, then what one of them shows besides
        for drawing in draw_all(place):
            drawings.setdefault(drawing.name, drawing)
    files = {HTML: page(findings, list(drawings.values())), MARKDOWN: markdown(findings)}
    for name, content in files.items():
        write_whole(folder / name, content)
    return [folder / name for name in files]
