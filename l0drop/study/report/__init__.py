"""One page that says what a run or a sweep has shown: report.html, whole in itself, and report.md for pull requests.

findings.py   what there is to say, from the files of a folder; nothing is measured here
words.py      the summary, and the cells of the tables
page.py       HTML, around page.html
markdown.py   Markdown, the short form
"""

from pathlib import Path

from l0drop.data.whole import write_whole
from l0drop.study.figures import draw_all
from l0drop.study.report.findings import gather
from l0drop.study.report.markdown import markdown
from l0drop.study.report.page import page

HTML, MARKDOWN = "report.html", "report.md"


def write_report(folder: Path, margin: float | None = None) -> list[Path]:
    """Draw the figures that the folder's files give, and write both forms of the report; the files written.

    `margin` judges the differences anew; left out, that of the evaluation.
    """
    findings = gather(folder, margin)
    files = {HTML: page(findings, draw_all(findings.analysed)), MARKDOWN: markdown(findings)}
    for name, content in files.items():
        write_whole(folder / name, content)
    return [folder / name for name in files]
