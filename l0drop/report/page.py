"""The report as one self-contained HTML page.

All text from data is escaped, and the page forbids scripts and requests, so that no output of a model can become more
than text.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template

from l0drop.report import evaluation
from l0drop.report.figures import Drawing
from l0drop.report.findings import Findings
from l0drop.report.summary import summary
from l0drop.runs.escape import html
from l0drop.runs.evaluation import ExampleSentence
from l0drop.runs.json_file import Settings
from l0drop.runs.table import Table, as_html
from l0drop.study.analysis.tables import NOT_DRAWN
from l0drop.study.source_need import QUESTION

TEMPLATE = Path(__file__).with_name("page.html")
_KINDS = {"run": "A run", "sweep": "A sweep", "demo": "The demo"}
THEORY = ("hard-concrete",)
"""Figures about the method, not about these models."""
RESULTS = ("difference", "quality", "speed")
"""Figures that belong to the verdict."""


def page(findings: Findings, drawings: Sequence[Drawing]) -> str:
    """The whole page: verdict, curve and examples first, analysis after them, theory last."""
    analysis = [drawing for drawing in drawings if drawing.name not in (*RESULTS, *THEORY)]
    not_drawn = {title: table for title, table in findings.measured.items() if title in NOT_DRAWN}
    sections = {
        "Verdict": _verdict(findings),
        "Quality, sparsity and speed": "".join(figure(d) for d in _named(drawings, RESULTS)),
        "Examples": _examples(findings),
        "Comparison with the dense model": _comparison(findings),
        "Tail risk": _tail(findings),
        "Rules and the learned gate": as_html(evaluation.rules_table(findings)) if findings.has_rules else "",
        "Analysis": _analysis(findings, analysis, not_drawn),
        "Settings": settings(findings.provenance, findings.signatures, findings.recipe),
        "Not in this report": listed(html(note) for note in findings.missing),
        "Background": "".join(figure(d) for d in _named(drawings, THEORY)),
    }
    made_by = findings.provenance["training"]
    subtitle = [_KINDS[findings.kind], *(f"{key} {made_by[key]}" for key in ("l0drop", "commit") if made_by.get(key))]
    return assembled(findings.name, subtitle, sections)


def assembled(title: str, subtitle: Sequence[str], sections: Mapping[str, str]) -> str:
    """A page of these sections, which are HTML; those without content are omitted."""
    shown = {name: body for name, body in sections.items() if body}
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=html(title),
        subtitle=html(", ".join(subtitle)),
        contents=listed(f'<a href="#{_anchor(name)}">{name}</a>' for name in shown),
        body="\n".join(
            f'<section id="{_anchor(name)}">\n<h2>{name}</h2>\n{body}\n</section>' for name, body in shown.items()
        ),
    )


def _anchor(title: str) -> str:
    return title.lower().replace(",", "").replace(" ", "-")


def _named(drawings: Sequence[Drawing], names: Sequence[str]) -> list[Drawing]:
    return [drawing for name in names for drawing in drawings if drawing.name == name]


def _verdict(findings: Findings) -> str:
    sentences = " ".join(summary(findings))
    model = ""
    if findings.shown is not None and len(findings.points) > 1:
        model = f"<p>Examples, comparison and analysis below are of <strong>{html(findings.shown.label)}</strong>.</p>"
    warning = "" if findings.warning is None else f'<p class="warning">{html(findings.warning)}</p>'
    return f'{warning}<p class="summary">{html(sentences)}</p>{as_html(evaluation.points_table(findings))}{model}'


def _comparison(findings: Findings) -> str:
    if findings.evaluation is None or findings.shown is None or findings.tail is None:
        return ""
    against = f", compared with {html(findings.compared_with)}" if findings.compared_with else ""
    parts = [
        f"<p>{html(findings.shown.label)}{against}, on {html(findings.text)}.</p>",
        as_html(evaluation.scores_table(findings.evaluation, "gated", "dense", runs=1)),
    ]
    controls = evaluation.controls_table(findings)
    if controls is not None and QUESTION not in findings.measured:
        parts.append(f"<h3>{QUESTION}</h3>{as_html(controls)}")
    return "\n".join(parts)


def _tail(findings: Findings) -> str:
    overview = evaluation.tail_overview(findings)
    if overview is None or findings.shown is None or findings.evaluation is None or findings.tail is None:
        return ""
    reference = "human reference" if findings.evaluation.references is None else "dense (start) output"
    full = evaluation.tail_table(findings.evaluation, "gated", "dense", reference)
    assert full is not None
    if len(overview.rows) == 1:
        return as_html(full)
    return f"{as_html(overview)}<h3>{html(findings.shown.label)} in full</h3>{as_html(full)}"


def _analysis(findings: Findings, drawings: Sequence[Drawing], tables: dict[str, Table]) -> str:
    return "".join(map(figure, drawings)) + "".join(
        f"<h3>{html(title)}</h3>{as_html(table)}" for title, table in tables.items()
    )


def figure(drawing: Drawing) -> str:
    """A figure with its title and caption."""
    return (
        f'<figure>\n<h3>{html(drawing.title)}</h3>\n<div class="scroll">{drawing.svg}</div>\n'
        f"<figcaption>{html(drawing.caption)}</figcaption>\n</figure>\n"
    )


def _examples(findings: Findings) -> str:
    if not findings.examples or findings.shown is None:
        return ""
    struck = any(state == "dropped" for example in findings.examples for _, state in example.source)
    intro = (
        f"<p>Outputs of {html(findings.shown.label)}. "
        f"{'Dropped source tokens are <del>struck out</del>. ' if struck else ''}"
        f"Sentences are drawn at random, except those marked as having lost most against the dense model. "
        f"{evaluation.which_seed(findings)}</p>"
    )
    first, *more = [_example(example) for example in findings.examples]
    rest = f"<details><summary>{len(more)} more examples</summary>{''.join(more)}</details>" if more else ""
    return "\n".join([intro, first, rest])


def _example(example: ExampleSentence) -> str:
    why = f": {example.why}" if example.why != "drawn at random" else ""
    lines = {"source": "".join(_segment(*segment) for segment in example.source)}
    for label, text in (("human reference", example.reference), ("dense", example.baseline), ("gated", example.system)):
        if text is not None:
            lines[label] = html(text) or '<span class="dim">(empty)</span>'
    shown = "".join(f'<dt>{name}</dt><dd dir="auto">{line}</dd>' for name, line in lines.items())
    return f'<article><p class="dim">line {example.line:,}{html(why)}</p><dl>{shown}</dl></article>'


def _segment(segment: str, state: str) -> str:
    match state:
        case "dropped":
            return f"<del>{html(segment)}</del>"
        case "cut":
            return f'<span class="cut" title="not read: beyond the longest source">{html(segment)}</span>'
        case _:
            return html(segment)


def settings(provenance: Mapping[str, Settings], signatures: Mapping[str, str], recipe: str) -> str:
    """Software and settings, the signatures of scores, and the recipe."""
    parts = []
    for name, values in provenance.items():
        known = ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)
        parts.append(f"<p><strong>{html(name.capitalize())}:</strong> {html(known)}</p>" if known else "")
    parts.append(listed(f"{html(name)}: <code>{html(signature)}</code>" for name, signature in signatures.items()))
    if recipe:
        parts.append(f"<details><summary>The recipe</summary><pre>{html(recipe)}</pre></details>")
    return "\n".join(parts)


def listed(items: Iterable[str]) -> str:
    """A list of HTML items; blank if there are none."""
    found = "".join(f"<li>{item}</li>" for item in items)
    return f"<ul>{found}</ul>" if found else ""
