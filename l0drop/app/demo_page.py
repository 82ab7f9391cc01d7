"""The demo's own page: the final table, and links to the reports of its tasks."""

import json
from pathlib import Path
from string import Template
from typing import Any

from l0drop.app.demo import NOTE, dropped_classes, results_rows
from l0drop.data.whole import write_whole
from l0drop.report.escape import html
from l0drop.report.page import TEMPLATE
from l0drop.report.table import Table, as_html


def demo_metrics(folder: Path) -> dict[str, Any] | None:
    """The content of a demo's metrics.json; None for other folders."""
    file = folder / "metrics.json"
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("tasks"), dict) else None


def write_page(folder: Path) -> Path:
    """Write report.html from metrics.json."""
    metrics = demo_metrics(folder)
    if metrics is None:
        raise ValueError(f"{folder}: no demo; expected a metrics.json with its tasks")
    tasks = metrics["tasks"]
    sections = {"Results": as_html(Table(*results_rows(tasks), NOTE))}
    for name, found in tasks.items():
        picture = (folder / name / "sentences.svg").read_text(encoding="utf-8")
        sections[name.capitalize()] = (
            f'<p><a href="{name}/report.html">Full report on {name}</a></p>\n'
            f"<p>{html(dropped_classes(name, found).plain)}.</p>\n<figure>{picture}</figure>"
        )
    content = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title="The demo of l0drop",
        subtitle=html(", ".join(f"{key} {metrics[key]}" for key in ("l0drop", "commit") if metrics.get(key))),
        contents="<ul>" + "".join(f'<li><a href="#{title}">{title}</a></li>' for title in sections) + "</ul>",
        body="\n".join(
            f'<section id="{title}">\n<h2>{title}</h2>\n{body}\n</section>' for title, body in sections.items()
        ),
    )
    page = folder / "report.html"
    write_whole(page, content)
    return page
