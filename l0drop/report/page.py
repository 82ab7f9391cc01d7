"""The report as one HTML page that needs nothing else.

All text that comes from data is escaped, and the page forbids scripts and requests, so that no output of a model can
become more than text.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from l0drop.report import words
from l0drop.report.figures import Drawing
from l0drop.report.findings import Findings
from l0drop.study.analysis.tables import CLOSED_BY_HAND, NOT_DRAWN

TEMPLATE = Path(__file__).with_name("page.html")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that a page cannot hold."""
_KINDS = {"run": "A run", "sweep": "A sweep", "demo": "The demo"}
_CLASSES = {words.NON_INFERIOR: "good", words.NOT_SHOWN: "bad"}

Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def page(findings: Findings, drawings: Sequence[Drawing]) -> str:
    """The whole page."""
    sections = {
        "Summary": f'<p class="summary">{text(" ".join(words.summary(findings)))}</p>',
        "Quality, sparsity, speed": _points(findings),
        "Against the baseline": _comparison(findings),
        "Rules beside the learned gate": _rules(findings),
        "Figures": "".join(_figure(drawing) for drawing in sorted(drawings, key=_is_explanation)),
        **{title: table(*found) for title, found in findings.measured.items() if title in NOT_DRAWN},
        "Examples": _examples(findings),
        "Settings": _settings(findings),
        "Not in this report": _list(text(note) for note in findings.missing),
    }
    made_by = findings.provenance["training"]
    subtitle = [_KINDS[findings.kind], *(f"{key} {made_by[key]}" for key in ("l0drop", "commit") if made_by.get(key))]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=text(findings.name),
        subtitle=text(", ".join(subtitle)),
        body="\n".join(f"<section>\n<h2>{name}</h2>\n{body}\n</section>" for name, body in sections.items() if body),
    )


def text(value: object) -> str:
    """Anything as text of a page: nothing in it is markup."""
    return escape(CONTROL.sub("\ufffd", str(value)))


def table(content: Table, note: str = "", marked: int | None = None) -> str:
    """A table that scrolls where the screen is narrow; one row may be marked."""
    head, rows = content
    kinds = [' class="words"' if name in (words.KIND, CLOSED_BY_HAND) else "" for name in head[1:]]
    lines = []
    for place, (first, *rest) in enumerate(rows):
        cells = "".join(f"<td{kind}>{_cell(cell)}</td>" for cell, kind in zip(rest, kinds, strict=True))
        mark = ' class="marked"' if place == marked else ""
        lines.append(f'<tr{mark}><th scope="row">{text(first)}</th>{cells}</tr>')
    names = "".join(f'<th scope="col"{kind}>{text(name)}</th>' for name, kind in zip(head, ["", *kinds], strict=True))
    body = "\n".join(lines)
    noted = f'<p class="note">{text(note)}</p>' if note else ""
    return (
        f'<div class="scroll"><table>\n<thead><tr>{names}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>{noted}'
    )


def _cell(cell: str) -> str:
    return f'<span class="{_CLASSES[cell]}">{text(cell)}</span>' if cell in _CLASSES else text(cell)


def _points(findings: Findings) -> str:
    best = findings.recommended
    marked = None if best is None else findings.rows.index(best)
    advice = ""
    if best is not None and len(findings.points) > 1:
        advice = (
            f"<p>Recommended: <strong>{text(best.name)}</strong>, the sparsest point that is non-inferior at a margin "
            f"of {findings.margin:g} {text(findings.metric)}.</p>"
        )
    return advice + table(words.points_table(findings), words.points_note(findings), marked)


def _comparison(findings: Findings) -> str:
    evaluation = findings.evaluation
    if evaluation is None or findings.shown is None:
        return ""
    parts = [f"<p>{text(findings.shown.name)}, on {text(findings.text)}.</p>"]
    if findings.tail is not None:
        parts.append(table(words.differences_table(evaluation), words.differences_note(evaluation)))
        parts.append("<h3>Tail risk</h3>" + table(words.tail_table(findings.tail), words.tail_note(findings)))
    controls = words.controls_table(evaluation, findings.metric)
    if controls is not None:
        parts.append("<h3>Does the task need the source?</h3>" + table(controls, words.which_seed(findings)))
    return "\n".join(parts) if len(parts) > 1 else ""


def _rules(findings: Findings) -> str:
    note = "As in table 2 of the paper. A rule has nothing to learn; the model is fine-tuned with it in place."
    return table(words.rules_table(findings), note) if findings.has_rules else ""


def _is_explanation(drawing: Drawing) -> bool:
    """The distribution says nothing about these models; it comes last."""
    return drawing.name == "hard-concrete"


def _figure(drawing: Drawing) -> str:
    return (
        f'<figure>\n<h3>{text(drawing.title)}</h3>\n<div class="scroll">{drawing.svg}</div>\n'
        f"<figcaption>{text(drawing.caption)}</figcaption>\n</figure>\n"
    )


def _examples(findings: Findings) -> str:
    if not findings.examples or findings.shown is None:
        return ""
    struck = any(state == "dropped" for example in findings.examples for _, state in example["source"])
    intro = (
        f"<p>{text(findings.shown.name)}{'; <del>struck out</del>: dropped' if struck else ''}. Drawn at random, but "
        f"for those that say that they lost most against the baseline. {words.which_seed(findings)}</p>"
    )
    return "\n".join([intro, *(_example(example) for example in findings.examples)])


def _example(example: dict[str, Any]) -> str:
    why = f": {example['why']}" if example["why"] != "drawn at random" else ""
    lines = {"source": "".join(_segment(*segment) for segment in example["source"])}
    for name, label in (("reference", "reference"), ("baseline", "baseline"), ("system", "ours")):
        if example[name] is not None:
            lines[label] = text(example[name]) or '<span class="dim">(empty)</span>'
    shown = "".join(f'<dt>{name}</dt><dd dir="auto">{line}</dd>' for name, line in lines.items())
    return f'<article><p class="dim">line {example["line"]:,}{text(why)}</p><dl>{shown}</dl></article>'


def _segment(segment: str, state: str) -> str:
    match state:
        case "dropped":
            return f"<del>{text(segment)}</del>"
        case "cut":
            return f'<span class="cut" title="cut: beyond the longest source">{text(segment)}</span>'
        case _:
            return text(segment)


def _settings(findings: Findings) -> str:
    parts = []
    for name, values in findings.provenance.items():
        known = ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)
        parts.append(f"<p><strong>{text(name.capitalize())}:</strong> {text(known)}</p>" if known else "")
    signatures = findings.signatures.items()
    parts.append(_list(f"{text(name)}: <code>{text(signature)}</code>" for name, signature in signatures))
    if findings.recipe:
        parts.append(f"<details><summary>The recipe</summary><pre>{text(findings.recipe)}</pre></details>")
    return "\n".join(parts)


def _list(items: Iterable[str]) -> str:
    found = "".join(f"<li>{item}</li>" for item in items)
    return f"<ul>{found}</ul>" if found else ""
