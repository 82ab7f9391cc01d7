"""The demo's own page: the final table, and links to the reports of its tasks."""

from pathlib import Path
from string import Template

from l0drop.app.demo import dropped_classes, results_table
from l0drop.data.whole import write_whole
from l0drop.report.page import TEMPLATE
from l0drop.runs.demo import Demo
from l0drop.runs.escape import html
from l0drop.runs.json_file import read_any
from l0drop.runs.provenance import Provenance
from l0drop.runs.run import RunFolder
from l0drop.runs.table import as_html


def demo_in(folder: Path) -> Demo | None:
    """The demo in a folder; None for other folders."""
    file = RunFolder(folder).metrics
    content = read_any(file, Demo.remedy(file)) if file.is_file() else None
    return Demo.read(file) if isinstance(content, dict) and "tasks" in content else None


def write_page(folder: Path) -> Path:
    """Write report.html from metrics.json."""
    demo = demo_in(folder)
    if demo is None:
        raise ValueError(f"{folder}: no demo; expected a metrics.json with its tasks")
    made_by = demo.made_by or Provenance()
    versions = {"l0drop": made_by.l0drop, "commit": made_by.commit}
    sections = {"Results": as_html(results_table(demo.tasks))}
    for name, found in demo.tasks.items():
        picture = (folder / name / "sentences.svg").read_text(encoding="utf-8")
        sections[name.capitalize()] = (
            f'<p><a href="{name}/report.html">Full report on {name}</a></p>\n'
            f"<p>{html(dropped_classes(name, found).plain)}.</p>\n<figure>{picture}</figure>"
        )
    content = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title="The demo of l0drop",
        subtitle=html(", ".join(f"{key} {version}" for key, version in versions.items() if version)),
        contents="<ul>" + "".join(f'<li><a href="#{title}">{title}</a></li>' for title in sections) + "</ul>",
        body="\n".join(
            f'<section id="{title}">\n<h2>{title}</h2>\n{body}\n</section>' for title, body in sections.items()
        ),
    )
    page = RunFolder(folder).report
    write_whole(page, content)
    return page
