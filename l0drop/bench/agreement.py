"""Whether the systems of the decoding benchmark find the same tokens."""

import functools
from collections.abc import Callable, Mapping

from l0drop.bench.peers import Tokens
from l0drop.bench.remote import Remote
from l0drop.runs.benchmark import TokenAgreement

TIE = 1e-4
"""Two outputs tie if their length-normalised scores differ by less."""
_JUDGES = ("hf-dense", "engine-dense", "hf-short", "engine-short")
QUICK_JUDGES = ("engine-dense", "engine-short", "hf-dense", "hf-short")


def agreement_of(
    remotes: Mapping[str, Remote], variants: Mapping[str, str]
) -> tuple[int, dict[str, TokenAgreement | None]]:
    """The number of sentences, and each system's agreement with a reference, ties counted separately.

    A system with a model of its own (`variants`) is compared with our engine on that model's full memory. None for the
    reference itself, and for a system whose reference did not run.
    """
    hypotheses = {name: remote.ask("hypotheses") for name, remote in remotes.items()}
    found: dict[str, TokenAgreement | None] = dict.fromkeys(remotes)
    sentences = sum(map(len, next(iter(hypotheses.values()))))
    peers = [name for name in remotes if name.startswith("ct2")]
    with_own = [name for name in remotes if variants[name] and name not in peers]
    for name in with_own:
        score = functools.partial(_scores, remotes[name], True)
        reference = "engine-dense, the same gates"
        dense = remotes[name].ask("dense_hypotheses")
        found[name] = compare(hypotheses[name], dense, score, reference=reference, must_agree="int8" not in name)
    judge, quick = (next((name for name in names if name in remotes), None) for names in (_JUDGES, QUICK_JUDGES))
    if peers and variants[peers[0]]:
        quick = f"engine-{variants[peers[0]]}"
        peers = peers if quick in remotes else []
    if judge is None or quick is None:
        return sentences, found
    for name in remotes.keys() - {judge, *with_own, *(one for one in remotes if one.startswith("ct2"))}:
        score = functools.partial(_scores, remotes[judge], True)
        found[name] = compare(
            hypotheses[name], hypotheses[judge], score, reference=judge, must_agree="int8" not in name
        )
    without_gates = remotes[quick].ask("ungated_hypotheses") if peers else []
    for name in peers:
        score = functools.partial(_scores, remotes[quick], False)
        reference = f"{quick}, without gates"
        found[name] = compare(
            hypotheses[name], without_gates, score, reference=reference, must_agree=remotes[name].ask("must_agree")
        )
    return sentences, found


OutputIds = tuple[int, int, list[int]]


def _scores(judge: Remote, gated: bool, outputs: list[OutputIds]) -> list[float]:
    return judge.ask("scores", outputs, gated) if outputs else []


def compare(
    one: list[Tokens],
    other: list[Tokens],
    score: Callable[[list[OutputIds]], list[float]],
    *,
    reference: str,
    must_agree: bool,
) -> TokenAgreement:
    """Count the sentences of `one` with the tokens of `other`, the reference; `score` decides whether others tie."""
    sentences = [(batch, row) for batch, rows in enumerate(other) for row in range(len(rows))]
    differing = [(batch, row) for batch, row in sentences if one[batch][row] != other[batch][row]]
    both = (score([(batch, row, system[batch][row]) for batch, row in differing]) for system in (one, other))
    gaps = [abs(a - b) for a, b in zip(*both, strict=True)]
    tied = sum(gap < TIE for gap in gaps)
    return TokenAgreement(
        reference,
        must_agree,
        same=len(sentences) - len(differing),
        tied=tied,
        different=len(differing) - tied,
        largest_score_gap=max(gaps, default=0.0),
    )
