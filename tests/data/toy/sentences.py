"""Helpers that build sentences from words of the lexicon."""

from typing import Any

from l0drop.data.toy.clauses import Adjunct, Clause, prepositional
from l0drop.data.toy.lexicon import ADJECTIVES, DAT, NOUNS, VERBS, Verb
from l0drop.data.toy.phrases import PRONOUNS, Nominal, Phrase


def np(determiner: str, noun: str, *adjectives: str, **more: Any) -> Nominal:
    return Nominal(determiner, NOUNS[noun], [ADJECTIVES[a] for a in adjectives], **more)


def verb(frame: str, english: str) -> Verb:
    return VERBS[frame][english]


def clause(subject: Phrase | str, the_verb: Verb, tense: str = "present", **more: Any) -> Clause:
    return Clause(PRONOUNS[subject] if isinstance(subject, str) else subject, the_verb, tense, **more)


def does(subject: Phrase | str, english: str, thing: Phrase | None, tense: str = "present", **more: Any) -> Clause:
    return clause(subject, verb("accusative", english), tense, accusative=thing, **more)


def conjunction(english: str, german: str, tag: str = "IN") -> Adjunct:
    return Adjunct([(english, tag)], german)


def adjective(english: str) -> Adjunct:
    entry = ADJECTIVES[english]
    return Adjunct([entry.token], entry.german)


def where(english: str, german: str, noun: Nominal, case: int = DAT) -> Adjunct:
    return prepositional(english, german, case, noun)
