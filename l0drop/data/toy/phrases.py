"""Phrases: the parts of a clause, declined in both languages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from l0drop.data.toy.lexicon import (
    FEMININE,
    FIRST,
    GEN,
    GERMAN_NUMBERS,
    MANY,
    MASCULINE,
    NEUTER,
    PLURAL,
    SECOND,
    THIRD,
    Adjective,
    Noun,
    listed,
)
from l0drop.data.toy.pair import ToyToken


def _declined(stem: str, *rows: str) -> tuple[str, ...]:
    return tuple(stem + ending.strip("-") for row in rows for ending in row.split())


_DER = ("der den dem des", "die die der der", "das das dem des", "die die den der")  # rows: m f n pl; columns: cases
_DIESER = ("er en em es", "e e er er", "es es em es", "e e en er")
_EIN = ("- en em es", "e e er er", "- - em es", "e e en er")
_WEAK = _declined("", "e en en en", "e e en en", "e e en en", "en en en en")
_MIXED = _declined("", "er en en en", "e e en en", "es es en en", "en en en en")
_STRONG = _declined("", "er en em en", "e e er er", "es es em en", "e e en er")


class Determiner(NamedTuple):
    """A determiner: English singular and plural, German by gender and case, and the adjective endings after it."""

    singular: list[ToyToken]
    plural: list[ToyToken]
    german: tuple[str, ...]
    endings: tuple[str, ...]
    definite: bool


def _determiners() -> dict[str, Determiner]:
    def der(word: str, plural: str, german: tuple[str, ...]) -> Determiner:
        return Determiner([(word, "DT")], [(plural, "DT")], german, _WEAK, True)

    def ein(word: str, stem: str, tag: str, definite: bool = True) -> Determiner:
        return Determiner([(word, tag)], [(word, tag)], _declined(stem, *_EIN), _MIXED, definite)

    none = ("",) * 16
    table = {
        "the": der("the", "the", _declined("", *_DER)),
        "this": der("this", "these", _declined("dies", *_DIESER)),
        "every": der("every", "every", _declined("jed", *_DIESER)),
        "all the": Determiner([], [("all", "PDT"), ("the", "DT")], _declined("all", *_DIESER), _WEAK, True),
        "a": ein("a", "ein", "DT", definite=False),
        "no": ein("no", "kein", "DT", definite=False),
        "any": ein("any", "kein", "DT", definite=False),
        "": Determiner([], [], none, _STRONG, False),
        "some": Determiner([], [("some", "DT")], _declined("einig", *_DIESER), _STRONG, False),
        "many": Determiner([], [("many", "JJ")], _declined("viel", *_DIESER), _STRONG, False),
        "whose dessen": Determiner([("whose", "WP$")], [("whose", "WP$")], ("dessen",) * 16, _STRONG, True),
        "whose deren": Determiner([("whose", "WP$")], [("whose", "WP$")], ("deren",) * 16, _STRONG, True),
    }
    for english, german in zip(
        listed("my your his her our their"), listed("mein dein sein ihr unser ihr"), strict=True
    ):
        table[english] = ein(english, german, "PRP$")
    return table


DETERMINERS = _determiners()
_KEIN = DETERMINERS["no"].german
_AN_EXCEPTIONS = ("univ", "use")  # a university, a useful key; the first letter decides for all other words


class Phrase:
    """A part of a clause; `relative` is the German of a relative clause attached to it."""

    __slots__ = ("agreement", "definite", "gender", "kind", "objective", "pronoun", "relative", "tokens")

    def __init__(self, tokens: list[ToyToken], gender: int, agreement: int = THIRD, definite: bool = True) -> None:
        self.tokens = self.objective = tokens
        self.gender, self.agreement, self.definite = gender, agreement, definite
        self.pronoun, self.relative, self.kind = False, "", "P"

    def german(self, case: int) -> str:
        """Write the phrase without its relative clause."""
        raise NotImplementedError

    def full(self, case: int) -> str:
        """Write the phrase with its relative clause; `pair` removes its last comma next to another."""
        return f"{self.german(case)}, {self.relative}," if self.relative else self.german(case)


class Pronoun(Phrase):
    """A word with one form per case: a pronoun, or a gap that a question or relative pronoun fills."""

    __slots__ = ("_forms",)

    def __init__(self, english: str, german: str, gender: int, agreement: int = THIRD, tag: str = "PRP") -> None:
        subject, _, objective = english.partition("/")
        super().__init__([(subject, tag)] if subject else [], gender, agreement)
        self.objective = [(objective, tag)] if objective else self.tokens
        self._forms, self.pronoun = german.split() or ("", "", ""), True

    def german(self, case: int) -> str:
        return self._forms[case]


PRONOUNS = {
    "I": Pronoun("I/me", "ich mich mir", MASCULINE, FIRST),
    "you": Pronoun("you/you", "du dich dir", MASCULINE, SECOND),
    "he": Pronoun("he/him", "er ihn ihm", MASCULINE),
    "she": Pronoun("she/her", "sie sie ihr", FEMININE),
    "we": Pronoun("we/us", "wir uns uns", PLURAL, MANY),
    "they": Pronoun("they/them", "sie sie ihnen", PLURAL, MANY),
    "who": Pronoun("who/who", "wer wen wem", MASCULINE, tag="WP"),
}
IT = (Pronoun("it", "er ihn ihm", 0), Pronoun("it", "sie sie ihr", 1), Pronoun("it", "es es ihm", 2), PRONOUNS["they"])
THERE = (Pronoun("there", "es es es", NEUTER, tag="EX"), Pronoun("there", "es es es", NEUTER, MANY, tag="EX"))
GAP = tuple(Pronoun("", "", gender, MANY if gender == PLURAL else THIRD) for gender in range(4))


class Name(Phrase):
    """A proper name of one or more words, copied to the German."""

    __slots__ = ("text",)

    def __init__(self, text: str, gender: int) -> None:
        super().__init__([(word, "NNP") for word in text.split()], gender)
        self.text = text

    def german(self, case: int) -> str:
        return self.text + "s" if case == GEN else self.text


class Nominal(Phrase):
    """A noun with its determiner, adjectives and other modifiers.

    `number` is digits or an English number word; `origin` is a town ("the Lomberg station"). `owner` ("my mother's
    key") and `of`, a whole ("the door of the house"), become a German genitive.
    """

    __slots__ = (
        "_after",
        "_before",
        "_endings",
        "adjectives",
        "determiner",
        "noun",
        "number",
        "of",
        "origin",
        "plural",
    )

    def __init__(
        self,
        determiner: str,
        noun: Noun,
        adjectives: Sequence[Adjective] = (),
        *,
        plural: bool = False,
        number: str = "",
        origin: str = "",
        owner: Name | Nominal | None = None,
        of: Nominal | None = None,
    ) -> None:
        entry = DETERMINERS["the" if owner is not None else determiner]
        self.determiner, self.noun, self.adjectives, self.plural = determiner, noun, adjectives, plural
        tokens: list[ToyToken] = []
        if owner is not None:
            tokens += owner.tokens
            tokens.append(("'s", "POS"))
        else:
            tokens += entry.plural if plural else entry.singular
        if number:
            tokens.append((number, "CD"))
        for adjective in adjectives:
            tokens.append(adjective.token)
        if origin:
            tokens.append((origin, "NNP"))
        tokens += noun.english[plural]
        if determiner == "a" and tokens[1][0][0] in "aeiou" and not tokens[1][0].startswith(_AN_EXCEPTIONS):
            tokens[0] = ("an", "DT")
        super().__init__(tokens, PLURAL if plural else noun.gender, MANY if plural else THIRD, entry.definite)
        self.kind = noun.kind
        self._before, self._endings, self._after = entry.german, entry.endings, ""
        self.of = of is not None
        self.number, self.origin = GERMAN_NUMBERS.get(number, number), f"{origin}er" if origin else ""
        if isinstance(owner, Name):
            self._before, self._endings = (owner.german(GEN),) * 16, _STRONG
        elif owner is not None:
            self._after = " " + owner.german(GEN)
        elif of is not None:
            self.tokens = self.objective = [*tokens, ("of", "IN"), *of.tokens]
            self._after = " " + of.german(GEN)

    def german(self, case: int) -> str:
        return self._written(case, self._before)

    def denied(self, case: int) -> str:
        """Write the phrase with "kein" for its indefinite article."""
        return self._written(case, _KEIN)

    def _written(self, case: int, before: tuple[str, ...]) -> str:
        at = self.gender * 4 + case
        parts = [before[at]] if before[at] else []
        if self.number:
            parts.append(self.number)
        for adjective in self.adjectives:
            parts.append(adjective.stem + self._endings[at])
        if self.origin:
            parts.append(self.origin)
        parts.append(self.noun.german[case + 4 if self.plural else case])
        return " ".join(parts) + self._after


class Coordination(Phrase):
    """Two phrases joined by "and"."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Phrase, second: Phrase) -> None:
        super().__init__([*first.tokens, ("and", "CC"), *second.tokens], PLURAL, MANY, first.definite)
        self._first, self._second, self.kind = first, second, first.kind

    def german(self, case: int) -> str:
        return f"{self._first.german(case)} und {self._second.german(case)}"
