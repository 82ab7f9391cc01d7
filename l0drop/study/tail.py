"""Tail risk, which a mean score hides: sentences that got much worse, missing numbers, names and negations, lengths.

Each figure is given for the system and the baseline, and for the reference too if that makes sense: a human translator
also omits numbers.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from l0drop.runs.evaluation import ChrfChanges, Lengths, LostMost, Missing, Tail

CHRF_LOSS = 20.0
WORST = 20

NEGATIONS: Mapping[str, str] = {
    "en": r"no|not|never|none|nobody|nothing|nowhere|neither|nor|without|cannot|\w+n['’]t",
    "de": r"nein|nicht|nichts|nie|niemals|niemand(?:s|en|em)?|nirgends|nirgendwo|weder|ohne|"
    r"kein(?:e|en|em|er|es|erlei|esfalls|eswegs)?",
}
"""Words that negate a sentence, by language code; whole words, in any case."""

# Digits with single marks between them: 1,000.50, 10:30, 1’000; the spaces are non-breaking.
_NUMBER = re.compile(r"\d+(?:[.,:'’\u00a0\u202f]\d+)*")
_WORD = re.compile(r"\w+(?:-\w+)*")
_SENTENCE_END = frozenset(".!?:…")


def numbers(text: str) -> Counter[str]:
    """The numbers in a text as digits: "1,000", "1.000" and "１０００" are equal, and so are "07:30" and "7.30"."""
    found = ("".join(str(unicodedata.digit(char)) for char in run if char.isdigit()) for run in _NUMBER.findall(text))
    return Counter(digits.lstrip("0") or "0" for digits in found)


def capitalised(text: str) -> Counter[str]:
    """Words of two or more characters that start with an upper-case letter and are not the first of a sentence.

    A sentence starts with the text, and after any of . ! ? : and …
    """
    found = Counter[str]()
    end, starts = 0, True
    for match in _WORD.finditer(text):
        word = match.group()
        starts = starts or not _SENTENCE_END.isdisjoint(text[end : match.start()])
        if not starts and len(word) > 1 and word[0].isupper():
            found[word] += 1
        end, starts = match.end(), False
    return found


def names(source: str, reference: str) -> Counter[str]:
    """Capitalised words of the source that the reference also has, in the same spelling.

    This excludes names that change their spelling, and the nouns of languages that capitalise nouns.
    """
    return capitalised(source) & words(reference)


def words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text))


def negations(text: str, language: str) -> Counter[str]:
    """One if the text has a word of the language's list."""
    return Counter({"negation": 1} if re.search(rf"\b(?:{NEGATIONS[language]})\b", text, re.IGNORECASE) else {})


def tail_risk(
    sources: Sequence[str],
    references: Sequence[str],
    outputs: Sequence[str],
    baseline: Sequence[str],
    chrf: np.ndarray,
    chrf_baseline: np.ndarray,
    languages: tuple[str, str] | None = None,
    lines: Sequence[int] | None = None,
) -> Tail:
    """All figures for one system and its baseline; `chrf` holds sentence scores, `lines` the line of each, from 1."""
    texts = {"system": outputs, "baseline": baseline, "reference": references}
    found_numbers = {name: [numbers(text) for text in side] for name, side in texts.items()}
    found_words = {name: [words(text) for text in side] for name, side in texts.items()}
    expected = [names(source, reference) for source, reference in zip(sources, references, strict=True)]
    in_source = sum(capitalised(source).total() for source in sources)
    return Tail(
        chrf=_losses(chrf - chrf_baseline, range(1, len(chrf) + 1) if lines is None else lines),
        numbers=missing([numbers(source) for source in sources], found_numbers),
        names=replace(missing(expected, found_words), capitalised_in_source=in_source),
        negations=_negations_missing(sources, texts, languages),
        length={name: _lengths(side, references) for name, side in texts.items() if name != "reference"},
    )


def _losses(differences: np.ndarray, lines: Sequence[int]) -> ChrfChanges:
    """The shares of sentences that lose or gain more than the threshold; if both are large, outputs change but are not
    worse."""
    order = np.argsort(differences, kind="stable")[:WORST]
    return ChrfChanges(
        threshold=CHRF_LOSS,
        losing=float((differences < -CHRF_LOSS).mean()),
        gaining=float((differences > CHRF_LOSS).mean()),
        worst=[LostMost(lines[i], float(differences[i])) for i in order if differences[i] < 0],
    )


def missing(expected: Sequence[Counter[str]], found: Mapping[str, Sequence[Counter[str]]]) -> Missing:
    """The share of expected items that each text lacks; None if nothing is expected."""
    total = sum(items.total() for items in expected)

    def without(name: str, items: Sequence[Counter[str]]) -> int:
        return sum((these - there).total() for these, there in zip(items, found[name], strict=True))

    def shared(name: str) -> list[Counter[str]]:
        sides = zip(expected, found["reference"], found[name], strict=True)
        return [these & reference & there for these, reference, there in sides]

    return Missing(
        expected=total,
        missing={name: without(name, expected) / total if total else None for name in found},
        lost=without("system", shared("baseline")),
        gained=without("baseline", shared("system")),
    )


def _negations_missing(
    sources: Sequence[str], texts: Mapping[str, Sequence[str]], languages: tuple[str, str] | None
) -> Missing:
    """Sentences that are negated in the source (in the reference if the source language has no list) but not in the
    output."""
    if languages is None:
        return Missing(counted=False, why="the languages are not known (give `languages`)")
    source, target = languages
    if target not in NEGATIONS:
        return Missing(counted=False, why=f"no word list for {target}; there are lists for {', '.join(NEGATIONS)}")
    found = {name: [negations(text, target) for text in side] for name, side in texts.items()}
    listed = source in NEGATIONS
    expected = [negations(text, source) for text in sources] if listed else found["reference"]
    return replace(missing(expected, found), counted=True, expected_from="source" if listed else "reference")


def _lengths(outputs: Sequence[str], references: Sequence[str]) -> Lengths:
    ours = np.array([len(text) for text in outputs])
    theirs = np.array([len(text) for text in references])
    return Lengths(
        ratio=float(ours.sum() / max(theirs.sum(), 1)),
        under_half=float((ours < theirs / 2).mean()),
        over_double=float((ours > 2 * theirs).mean()),
        empty=int((ours == 0).sum()),
    )
