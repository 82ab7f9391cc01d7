"""The names of systems and studies in tables. Keys are those of the published files."""

from collections.abc import Mapping

from l0drop.study.sweep import RULES

SHORTENERS = ("mean_pool", "merge", "top_norm", "top_attention")
"""The ways to shorten a memory without gates that studies compare with."""
START, CONTINUED, SAME_WAY = "base", "on", "on-taught"
"""Keys of the dense models: the start of fine-tuning, the continued baseline, and the continued baseline distilled the
same way as the sparse models."""
SYSTEMS = {
    START: "dense, start",
    CONTINUED: "dense, continued",
    SAME_WAY: "dense, continued, distilled the same way",
    "on-long": "dense, continued, more steps",
    "on-taught-long": "dense, continued, distilled the same way, more steps",
    "on-falling": "dense, continued, learning rate 8e-4 falling to 0",
    "scratch": "sparse `zero`, from scratch",
    "layers-zero": "sparse `zero`, gates between layers too",
    "layers-mask": "sparse `mask`, gates between layers too",
    "half": "dense, half of the text",
    "small-vocabulary": "dense, vocabulary of 4,000",
    "one-layer": "dense, decoder of one layer",
    "cut": "dense, decoder cut to one layer",
    "elastic": "sparse `zero`, elastic",
    "zero-long": "sparse `zero`, more steps",
    "zero-falling": "sparse `zero`, learning rate 8e-4 falling to 0",
    "zero-no": "sparse `zero`, not distilled",
    "zero-distributions": "sparse `zero`, distilled (token)",
    "zero-text": "sparse `zero`, distilled (sequence)",
    "zero-both": "sparse `zero`, distilled (both)",
    "zero-mixed": "sparse `zero`, distilled (token) on references and outputs of the teacher",
    **{rule: f"rule `{rule}`" for rule in RULES},
    **{f"learned-as-{rule}": f"sparse `zero`, rate of `{rule}`" for rule in RULES},
    **{f"random-as-{rule}": f"random gates, rate of `{rule}`" for rule in RULES},
}
STUDIES = {
    "multi30k": "Multi30k, distilled (token)",
    "multi30k-translated": "Multi30k, distilled (both)",
    "europarl": "Europarl, baseline of 11,000 steps",
    "europarl-four-pairs": "Europarl, the same, earlier run with four seeds",
    "europarl-6000": "Europarl, baseline of 6,000 steps",
    "europarl-variants": "Europarl, rules, gates between layers, rivals",
    "europarl-short": "Europarl, baseline of 4,000 steps",
    "europarl-tried": "Europarl, baseline of 4,000 steps, ways to distil",
    "europarl-small": "Europarl, smaller vocabulary",
}
"""Every published study on real text. In each, models were steered to a target sparsity."""


def label(system: str, labels: Mapping[str, str] = SYSTEMS) -> str:
    """GATING-TARGET-HOW reads as "sparse `GATING`, target TARGET, HOW"; other names are in `labels`.

    In place of a gating stands a shortener, if the system has no gates.
    """
    if system in labels:
        return labels[system]
    if system.startswith(f"{SAME_WAY}-"):
        return f"{labels.get(SAME_WAY, SYSTEMS[SAME_WAY])}, {system.removeprefix(f'{SAME_WAY}-')}"
    gating, _, rest = system.partition("-")
    target, _, how = rest.partition("-")
    kind = "shortener" if gating in SHORTENERS else "sparse"
    return ", ".join(filter(None, (f"{kind} `{gating}`", target and f"target {target}", how)))
