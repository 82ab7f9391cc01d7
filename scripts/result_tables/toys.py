"""Tables of the studies on the toy corpora."""

from collections.abc import Mapping
from typing import Any

from l0drop.runs.table import Table

WAYS = {
    "fine-tuned": "baseline, then fine-tuned to the target",
    "from scratch": "from scratch, steered to the target",
    "from scratch, λ ramped": "from scratch, λ 0.5 ramped over 1,200 steps",
}
TARGETS = {
    "with references": "human references",
    "source text alone": "source text only: the dense model's outputs and distributions (both)",
}
RULES = {
    "inv_freq": "rarest words (`inv_freq`)",
    "freq": "most frequent words (`freq`)",
    "group": "every second position (`group`)",
    "pos": "function words, punctuation, later pieces (`pos`)",
    "norm": "smallest encodings (`norm`)",
    "random": "chance (`random`)",
}


def targets_table(found: Mapping[str, Any]) -> Table:
    """Target, sparsity on test text and score, on both corpora."""
    corpora = [found["targets"][corpus] for corpus in ("translation", "documents")]
    rows = [["none (dense, continued)", *(cell for one in corpora for cell in ("0", _score(one["reference"])))]]
    for points in zip(*(one["points"] for one in corpora), strict=True):
        (run,) = {point["run"] for point in points}
        cells = (cell for point in points for cell in (_sparsity(point), _score(point)))
        rows.append([f"{float(run.removeprefix('target-')):.0%}", *cells])
    head = ["target", "translation: dropped", "translation: BLEU", "documents: dropped", "documents: ROUGE-L"]
    return Table(head, rows)


def ways_tables(found: Mapping[str, Any]) -> tuple[Table, Table]:
    """Fine-tuned and from scratch; with references and with source text only."""
    tests = {name: run["test"] for name, run in found["ways"].items()}
    rows = [
        [[title, _sparsity(tests[name]), _score(tests[name])] for name, title in titles.items()]
        for titles in (WAYS, TARGETS)
    ]
    heads = (["training", "dropped", "BLEU"], ["training targets", "dropped", "BLEU"])
    return Table(heads[0], rows[0]), Table(heads[1], rows[1])


def rules_table(found: Mapping[str, Any]) -> Table:
    """Rules and learned gates by sparsity, each against the continued baseline."""
    sweep = found["rules"]
    dense = sweep["reference"]["score"]["value"]
    rows = []
    for point in sorted(sweep["points"], key=lambda point: float(point["sparsity"])):
        kind, _, value = point["run"].partition("-")
        title = f"learned, target {value}" if kind == "target" else RULES[kind]
        rows.append([title, _sparsity(point), _score(point), f"{point['score']['value'] - dense:+.2f}"])
    return Table(["gate", "dropped", "BLEU", 'difference to "dense, continued"'], rows)


def dial_table(found: Mapping[str, Any]) -> Table:
    """One elastic model at several settings of the dial next to models trained for each setting."""
    elastic, trained = found["elastic"]["dial"]["rows"], found["elastic"]["trained"]
    dense = found["elastic"]["reference"]
    rows = []
    for row in sorted(elastic, key=lambda row: -(row["keep"] or 0)):
        keep = row["keep"]
        if keep is None:
            rows.append([f"{1 - row['sparsity']:.1%}, the model's choice", _score(row), ""])
            continue
        other = dense if keep == 1 else trained[f"target-{1 - keep:.1g}"]
        rows.append([f"{keep:.0%}", _score(row), _score(other)])
    return Table(["kept", "BLEU, one elastic model", "BLEU, model trained for it"], rows)


def order_table(found: Mapping[str, Any]) -> Table:
    """Elastic models of two seeds at several settings of the dial, trained with hard cuts and with drawn gates."""
    hard, drawn = found["elastic-order"]["hard"], found["elastic-order"]["drawn"]
    curves = [{row["keep"]: _score(row) for row in curve["rows"]} for curve in (*hard, *drawn)]
    rows = []
    for keep in sorted(curves[0], key=lambda keep: -(keep or 0)):
        cells = [curve[keep] for curve in curves]
        label = "the model's choice" if keep is None else f"{keep:.0%}"
        rows.append([label, ", ".join(cells[: len(hard)]), ", ".join(cells[len(hard) :])])
    return Table(["kept", "BLEU, hard cuts", "BLEU, gates sampled around the cut"], rows)


def _sparsity(found: Mapping[str, Any]) -> str:
    return f"{found['sparsity']:.1%}"


def _score(found: Mapping[str, Any]) -> str:
    return f"{found['score']['value']:.2f}"
