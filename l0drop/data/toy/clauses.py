"""Clauses in both languages at once: a `Clause` holds phrases; `statement`, `question` and others order them."""

from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from l0drop.data.toy.lexicon import ACC, BE, DAT, EXIST, GEN, NOM, SECOND, THIRD, Verb, english_forms
from l0drop.data.toy.pair import ToyPair, ToyToken, joined
from l0drop.data.toy.phrases import PRONOUNS, Nominal, Phrase


class Adjunct(NamedTuple):
    """A part of a clause with the same form in every position.

    `relative` can move behind the German verb; `denies`: the German is negative already.
    """

    tokens: list[ToyToken]
    german: str
    time: bool = False
    relative: str = ""
    denies: bool = False


@dataclass(slots=True)
class Clause:
    """A verb with its subject, objects and adjuncts, not yet ordered.

    `predicate` stays next to the verb in English and goes to the end of the clause in German: a predicate adjective,
    the goal of a motion, a prepositional object. `front` opens the sentence, `tail` is a clause that ends it.
    """

    subject: Phrase
    verb: Verb
    tense: str = "present"
    accusative: Phrase | None = None
    dative: Phrase | None = None
    predicate: Adjunct | None = None
    adverb: Adjunct | None = None
    adjuncts: tuple[Adjunct, ...] = ()
    front: Adjunct | None = None
    tail: Adjunct | None = None
    negated: bool = False
    passive: bool = False
    to: bool = False  # "gave the key to the child" rather than "gave the child the key"


BothSides = tuple[list[ToyToken], str]  # both sides of a part of a sentence

_MODALS = {
    "can": "kann kannst kann können",
    "could": "konnte konntest konnte konnten",
    "must": "muss musst muss müssen",
    "should": "sollte solltest sollte sollten",
    "may": "darf darfst darf dürfen",
    "will": "werde wirst wird werden",
    "want": "will willst will wollen",
    "wanted": "wollte wolltest wollte wollten",
    "would like": "möchte möchtest möchte möchten",
}
_AUXILIARIES = {
    "haben": ("habe hast hat haben", "hatte hattest hatte hatten"),
    "sein": ("bin bist ist sind", "war warst war waren"),
    "werden": ("werde wirst wird werden", "wurde wurdest wurde wurden"),
}
_IS = ("am VBP", "are VBP", "is VBZ", "are VBP")
_WAS = ("was VBD", "were VBD", "was VBD", "were VBD")
_RELATIVE = ("der den dem", "die die der", "das das dem", "die die denen")
_CONTRACTIONS = {
    ("in", "dem"): "im", ("in", "das"): "ins", ("an", "dem"): "am", ("an", "das"): "ans", ("zu", "dem"): "zum",
    ("zu", "der"): "zur", ("von", "dem"): "vom", ("bei", "dem"): "beim",
}  # fmt: skip


def _token(entry: str) -> ToyToken:
    word, tag = entry.split()
    return word, tag


@cache
def _english_verb(
    verb: Verb, tense: str, agreement: int, support: bool, passive: bool
) -> tuple[ToyToken, list[ToyToken]]:
    """The finite English verb and the words after it; `support` adds "do" where a question or "not" needs it."""
    forms, be = verb.english, verb in (BE, EXIST)
    present = "VBZ" if agreement == THIRD else "VBP"
    rest = [("be", "VB"), (forms["VBN"], "VBN")] if passive else [(forms["VB"], "VB")]
    if tense in ("present", "past") and (be or passive):
        return _token((_IS if tense == "present" else _WAS)[agreement]), rest[1:]
    if tense in ("progressive", "was progressive"):
        return _token((_IS if tense == "progressive" else _WAS)[agreement]), [(forms["VBG"], "VBG")]
    if tense == "perfect":
        return ("has" if agreement == THIRD else "have", present), [(forms["VBN"], "VBN")]
    if tense == "pluperfect":
        return ("had", "VBD"), [(forms["VBN"], "VBN")]
    if tense == "would like":
        return ("would", "MD"), [("like", "VB"), ("to", "TO"), *rest]
    if tense in ("want", "wanted"):
        forms, rest = english_forms("want"), [("want", "VB"), ("to", "TO"), *rest]
    elif tense in _MODALS:
        return (tense, "MD"), rest
    if tense in ("past", "wanted"):
        return (("did", "VBD"), rest) if support else ((forms["VBD"], "VBD"), rest[1:])
    if support:
        return ("does" if agreement == THIRD else "do", present), rest
    return (forms["VBZ" if agreement == THIRD else "VB"], present), rest[1:]


@cache
def _german_verb(verb: Verb, tense: str, agreement: int, asking: bool, passive: bool) -> tuple[str, str, str]:
    """The finite German verb, its separable prefix, and the verb forms at the end of the clause.

    In questions and after "du", the simple past is not idiomatic and becomes a perfect.
    """
    if tense in _MODALS:
        return _MODALS[tense].split()[agreement], "", f"{verb.participle} werden" if passive else verb.infinitive
    past = tense in ("past", "was progressive")
    if passive:
        return _AUXILIARIES["werden"][past].split()[agreement], "", verb.participle
    if past and (asking or agreement == SECOND) and not verb.light:
        tense = "perfect"
    if tense in ("perfect", "pluperfect"):
        return _AUXILIARIES[verb.auxiliary][tense == "pluperfect"].split()[agreement], "", verb.participle
    return (verb.past if past else verb.present)[agreement], verb.prefix, ""


def _english(clause: Clause, asking: bool = False) -> tuple[list[ToyToken], ToyToken, list[ToyToken]]:
    """The words before the finite English verb, the verb, and the words after it."""
    c, verb = clause, clause.verb
    finite, rest = _english_verb(verb, c.tense, c.subject.agreement, asking or c.negated, c.passive)
    before, after = list(c.subject.tokens), []
    if c.negated:
        after.append(("not", "RB"))
    if c.adverb is not None:
        (after if rest or verb in (BE, EXIST) else before).extend(c.adverb.tokens)
    after += rest
    accusative = c.accusative.objective if c.accusative is not None else []
    if verb.particle and not (c.accusative is not None and c.accusative.pronoun):
        after += verb.particle
        after += accusative
    elif verb.particle:
        after += accusative
        after += verb.particle
    elif c.dative is None:
        after += verb.preposition
        after += accusative
    elif c.accusative is None:
        after += verb.preposition
        after += c.dative.objective
    elif c.to:
        after += accusative
        after.append(("to", "TO"))
        after += c.dative.objective
    else:
        after += c.dative.objective
        after += accusative
    if c.predicate is not None:
        after += c.predicate.tokens
    for adjunct in c.adjuncts:
        after += adjunct.tokens
    if c.tail is not None:
        after += c.tail.tokens
    return before, finite, after


def _middle(clause: Clause) -> tuple[list[str], list[str], str]:
    """Order the German words between the two verb positions: pronouns, the rest, and the part that moves behind.

    Pronouns come first, then time and the receiver; a definite object stands before the other adjuncts and an
    indefinite one after them; "nicht" follows the definite object and becomes "kein" on an indefinite one.
    """
    c, accusative, dative = clause, clause.accusative, clause.dative
    pronouns: list[str] = []
    middle: list[str] = []
    if accusative is not None and accusative.pronoun:
        pronouns.append(accusative.german(ACC))
        accusative = None
    if dative is not None and dative.pronoun:
        pronouns.append(dative.german(DAT))
        dative = None
    if c.tense in ("progressive", "was progressive"):
        middle.append("gerade")
    others = [c.adverb.german] if c.adverb is not None else []
    for adjunct in c.adjuncts:
        (middle if adjunct.time else others).append(adjunct.german)
    if dative is not None:
        middle.append(dative.full(DAT))
    negation = ["nicht"] if c.negated and not (c.predicate is not None and c.predicate.denies) else []
    behind = ""
    if accusative is None:
        middle += negation
        middle += others
    elif not accusative.definite:
        denied = c.negated and isinstance(accusative, Nominal) and accusative.determiner in ("a", "any")
        middle += others if denied else negation + others
        middle.append(accusative.denied(ACC) if denied and isinstance(accusative, Nominal) else accusative.german(ACC))
        behind = accusative.relative
    elif others or c.predicate is not None:
        middle.append(accusative.full(ACC))
        middle += negation
        middle += others
    else:
        middle.append(accusative.german(ACC))
        middle += negation
        behind = accusative.relative
    if c.predicate is not None:
        middle.append(c.predicate.german)
        behind = behind or c.predicate.relative
    if c.tail is not None:
        behind = c.tail.german
    return pronouns, middle, behind


def _after_verb(subject: Phrase, pronouns: list[str]) -> list[str]:
    """Order a subject and pronouns after the German verb or conjunction: pronouns precede an indefinite subject."""
    return [subject.full(NOM), *pronouns] if subject.definite else [*pronouns, subject.full(NOM)]


def _joined(parts: list[str], behind: str) -> str:
    text = " ".join([part for part in parts if part])
    return f"{text}, {behind}," if behind else text


def statement(clause: Clause, *, subject: bool = True) -> BothSides:
    """Write a main clause, verb second in German; without its subject it can follow another clause after "and"."""
    before, finite, after = _english(clause)
    german, prefix, rest = _german_verb(clause.verb, clause.tense, clause.subject.agreement, False, clause.passive)
    pronouns, middle, behind = _middle(clause)
    if not subject:
        skipped = len(clause.subject.tokens)
        return [*before[skipped:], finite, *after], _joined([german, *pronouns, *middle, prefix, rest], behind)
    if clause.front is not None:
        tokens = [*clause.front.tokens, *before, finite, *after]
        parts = [clause.front.german, german, *_after_verb(clause.subject, pronouns)]
    else:
        tokens = [*before, finite, *after]
        parts = [clause.subject.full(NOM), german, *pronouns]
    return tokens, _joined([*parts, *middle, prefix, rest], behind)


def question(clause: Clause) -> BothSides:
    """Write a question; `front` holds the question word, if there is one and it is not the subject."""
    front = clause.front or Adjunct([], "")
    about_subject = clause.subject is PRONOUNS["who"]
    before, finite, after = _english(clause, asking=not about_subject)
    german, prefix, rest = _german_verb(clause.verb, clause.tense, clause.subject.agreement, True, clause.passive)
    pronouns, middle, behind = _middle(clause)
    if about_subject:
        order = [clause.subject.german(NOM), german, *pronouns]
    else:
        order = [front.german, german, *_after_verb(clause.subject, pronouns)]
    tokens = [*before, finite] if about_subject else [*front.tokens, finite, *before]
    return [*tokens, *after], _joined([*order, *middle, prefix, rest], behind)


def subordinate(conjunction: Adjunct, clause: Clause) -> Adjunct:
    """Write a clause after a conjunction, verb last in German."""
    before, finite, after = _english(clause)
    german, prefix, rest = _german_verb(clause.verb, clause.tense, clause.subject.agreement, False, clause.passive)
    pronouns, middle, behind = _middle(clause)
    parts = [conjunction.german, *_after_verb(clause.subject, pronouns), *middle, rest, prefix + german]
    return Adjunct([*conjunction.tokens, *before, finite, *after], _joined(parts, behind))


def infinitive(clause: Clause, *, purpose: bool = False) -> Adjunct:
    """Write a clause without its subject, as "to buy a key": "einen Schlüssel zu kaufen", for a purpose with "um"."""
    skipped = len(clause.subject.tokens)
    clause.tense = "will"
    before, _, after = _english(clause)
    pronouns, middle, behind = _middle(clause)
    parts = ["um" if purpose else "", *pronouns, *middle, clause.verb.zu_infinitive]
    return Adjunct([("to", "TO"), *before[skipped:], *after], _joined(parts, behind))


def relative(head: Nominal, clause: Clause, role: Literal["subject", "accusative", "dative", "owner"]) -> Nominal:
    """Attach a relative clause to a noun, which is a `GAP` in the clause, or, as owner, the "whose" of its subject."""
    human = head.kind == "P"
    case = {"subject": NOM, "accusative": ACC, "dative": DAT, "owner": GEN}[role]
    german = "" if role == "owner" else _RELATIVE[head.gender].split()[case]
    word = ("whom" if case else "who", "WP") if human else ("which", "WDT")
    tokens, german, *_ = subordinate(Adjunct([] if role == "owner" else [word], german), clause)
    head.tokens = head.objective = [*head.tokens, *tokens]
    head.relative = german.rstrip(",")
    return head


def prepositional(english: str, german: str, case: int, phrase: Phrase, *, time: bool = False) -> Adjunct:
    """Write a preposition and its phrase, contracted with the article unless a relative clause needs that."""
    written = phrase.german(case)
    if isinstance(phrase, Nominal) and phrase.determiner == "the" and not phrase.relative:
        article, _, noun = written.partition(" ")
        contracted = _CONTRACTIONS.get((german, article))
        text = f"{contracted} {noun}" if contracted else f"{german} {written}"
    else:
        text = f"{german} {written}"
    words = [
        (word, "TO" if word == "to" else "JJ" if word == "next" else "NN" if word == "front" else "IN")
        for word in english.split()
    ]
    return Adjunct([*words, *phrase.objective], text, time, phrase.relative)


def pair(text: BothSides, end: str = ".") -> ToyPair:
    """Finish a sentence: capital letters, the final mark, and no comma next to another."""
    tokens, german = text
    first, tag = tokens[0]
    words, tags = zip(*[(first[0].upper() + first[1:], tag), *tokens[1:], (end, ".")], strict=True)
    target = german.rstrip(",").replace(",,", ",")
    return ToyPair(joined(words), target[0].upper() + target[1:] + end, words, tags)
