"""Tail risk: what a mean hides. Sentences that got much worse; numbers, names and negations that are gone; lengths.

Each figure stands beside the baseline's, and beside the reference's where that means something: a human translator
leaves numbers out too.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

CHRF_LOSS = 20.0
WORST = 20

NEGATIONS: Mapping[str, str] = {
    "en": r"no|not|never|none|nobody|nothing|nowhere|neither|nor|without|cannot|\w+n['’]t",
    "de": r"nein|nicht|nichts|nie|niemals|niemand(?:s|en|em)?|nirgends|nirgendwo|weder|ohne|"
    r"kein(?:e|en|em|er|es|erlei|esfalls|eswegs)?",
}
"""By language code, what makes a sentence negated; whole words, in any case."""

# Digits with single marks between them: 1,000.50, 10:30, 1’000; the spaces are those that do not break a line.
_NUMBER = re.compile(r"\d+(?:[.,:'’\u00a0\u202f]\d+)*")
_WORD = re.compile(r"\w+(?:-\w+)*")
_SENTENCE_END = frozenset(".!?:…")


def numbers(text: str) -> Counter[str]:
    """The numbers of a text as bare digits: "1,000", "1.000" and "１０００" are one, and so are "07:30" and "7.30"."""
    found = ("".join(str(unicodedata.digit(sign)) for sign in run if sign.isdigit()) for run in _NUMBER.findall(text))
    return Counter(digits.lstrip("0") or "0" for digits in found)


def capitalised(text: str) -> Counter[str]:
    """Words of two or more signs, the first an upper-case letter, that do not stand at the start of a sentence.

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
    """Capitalised words of the source that the reference has too, spelled the same.

    Names that change their spelling are left out by this, and so are the nouns of languages that capitalise them.
    """
    return capitalised(source) & words(reference)


def words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text))


def negations(text: str, language: str) -> Counter[str]:
    """One, where the text has a word of the language's list."""
    return Counter({"negation": 1} if re.search(rf"\b(?:{NEGATIONS[language]})\b", text, re.IGNORECASE) else {})


def tail_risk(
    sources: Sequence[str],
    references: Sequence[str],
    outputs: Sequence[str],
    baseline: Sequence[str],
    chrf: np.ndarray,
    chrf_baseline: np.ndarray,
    languages: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """Everything of this file for one system against its baseline; `chrf` are scores of single sentences."""
    texts = {"system": outputs, "baseline": baseline, "reference": references}
    found_numbers = {name: [numbers(text) for text in side] for name, side in texts.items()}
    found_words = {name: [words(text) for text in side] for name, side in texts.items()}
    expected = [names(source, reference) for source, reference in zip(sources, references, strict=True)]
    return {
        "chrf": _losses(chrf - chrf_baseline),
        "numbers": _missing([numbers(source) for source in sources], found_numbers),
        "names": {
            "capitalised_in_source": sum(capitalised(source).total() for source in sources),
            **_missing(expected, found_words),
        },
        "negations": _negations_missing(sources, texts, languages),
        "length": {name: _lengths(side, references) for name, side in texts.items() if name != "reference"},
    }


def _losses(differences: np.ndarray) -> dict[str, Any]:
    """How many sentences lose or gain more than the threshold: where both are many, it is change, not harm."""
    order = np.argsort(differences, kind="stable")[:WORST]
    return {
        "threshold": CHRF_LOSS,
        "losing": float((differences < -CHRF_LOSS).mean()),
        "gaining": float((differences > CHRF_LOSS).mean()),
        "worst": [{"place": int(i), "difference": float(differences[i])} for i in order if differences[i] < 0],
    }


def _missing(expected: Sequence[Counter[str]], found: Mapping[str, Sequence[Counter[str]]]) -> dict[str, Any]:
    """How much of what is expected each text does not have, as a share; None where nothing is expected.

    `lost`: what baseline and reference have and the system has not; `gained`: what system and reference have and the
    baseline has not.
    """
    total = sum(items.total() for items in expected)

    def without(name: str, items: Sequence[Counter[str]]) -> int:
        return sum((these - there).total() for these, there in zip(items, found[name], strict=True))

    def shared(name: str) -> list[Counter[str]]:
        sides = zip(expected, found["reference"], found[name], strict=True)
        return [these & reference & there for these, reference, there in sides]

    return {
        "expected": total,
        "missing": {name: without(name, expected) / total if total else None for name in found},
        "lost": without("system", shared("baseline")),
        "gained": without("baseline", shared("system")),
    }


def _negations_missing(
    sources: Sequence[str], texts: Mapping[str, Sequence[str]], languages: tuple[str, str] | None
) -> dict[str, Any]:
    """Sentences negated in the source (where its language has no list: in the reference) and not in the output."""
    if languages is None:
        return {"counted": False, "why": "the languages were not given (--languages en-de)"}
    source, target = languages
    if target not in NEGATIONS:
        return {"counted": False, "why": f"no word list for {target}; there are lists for {', '.join(NEGATIONS)}"}
    found = {name: [negations(text, target) for text in side] for name, side in texts.items()}
    listed = source in NEGATIONS
    expected = [negations(text, source) for text in sources] if listed else found["reference"]
    return {"counted": True, "expected_from": "source" if listed else "reference", **_missing(expected, found)}


def _lengths(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float | int]:
    """Characters by the reference's, over the corpus and sentence by sentence; and how many outputs are empty."""
    ours = np.array([len(text) for text in outputs])
    theirs = np.array([len(text) for text in references])
    return {
        "ratio": float(ours.sum() / max(theirs.sum(), 1)),
        "under_half": float((ours < theirs / 2).mean()),
        "over_double": float((ours > 2 * theirs).mean()),
        "empty": int((ours == 0).sum()),
    }
