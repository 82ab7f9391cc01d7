"""The phrases of a sentence: people, things, times, places and manners."""

from collections.abc import Callable

from l0drop.data.toy.clauses import Adjunct, prepositional
from l0drop.data.toy.lexicon import ACC, DAT, GEN, GERMAN_NUMBERS, Adjective, Noun, Verb, listed
from l0drop.data.toy.names import Namer
from l0drop.data.toy.phrases import PRONOUNS, Coordination, Nominal, Phrase
from l0drop.data.toy.style import FULL, KIN, UNOWNED, Style

_SMALL_NUMBERS = list(GERMAN_NUMBERS)[:11]
_DAYS = [
    Adjunct([("on", "IN"), (english, "NNP")], f"am {german}", time=True)
    for english, german in zip(
        listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
        listed("Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag"),
        strict=True,
    )
]
_TIME_GROUP = {
    **dict.fromkeys(["past", "could", "wanted"], "past"),
    **dict.fromkeys(["will", "must", "should", "can", "may", "want", "would like"], "future"),
    "perfect": "perfect",
    "present": "present",
}
_SPANS = [("days", "Tagen"), ("weeks", "Wochen"), ("months", "Monaten"), ("years", "Jahren"), ("hours", "Stunden")]
_TIME_PREPOSITIONS = [("after", "nach", DAT), ("before", "vor", DAT), ("during", "während", GEN)]
_PLACE_PREPOSITIONS = {
    **dict.fromkeys("BNC", ("in", "in")),
    **dict.fromkeys("LYD", ("at", "an")),
    **dict.fromkeys("OHS", ("on", "auf")),
}
_NEXT_TO = [("behind", "hinter"), ("next to", "neben"), ("in front of", "vor")]


class Scene(Namer):
    """Draws the phrases and adjuncts of a clause."""

    def __init__(self, uniform: Callable[[], float], style: Style = FULL) -> None:
        super().__init__(uniform, names=style.names)
        self._style = style

    def _number(self) -> str:
        if self._r() < self._style.number_words:
            return self._pick(self._style.number_table)
        return str(int(13 + 10 ** (1 + 2.5 * self._r())))

    def nominal(self, kinds: str, *, definite: bool = False, simple: bool = False, singular: bool = False) -> Nominal:
        """Draw a noun of one of these kinds with determiner and adjectives, and, unless simple, an owner."""
        r, style = self._r, self._style
        kind = self._pick(style.known(kinds))
        table = style.compound_table[kind]
        noun = self._pick(table if table and r() < 0.14 else style.noun_table[kind])
        adjectives: tuple[Adjective, ...] = ()
        u = r()
        if u < 0.42:
            adjectives = (self._pick(style.adjective_table[kind]),)
            if u < 0.05 and style.two_adjectives and style.color_table[kind]:
                adjectives = (self._pick(style.state_table[kind]), self._pick(style.color_table[kind]))
        u = r()
        owner = "the" if noun in UNOWNED or kind in "LYHU" else self._pick(style.owners)
        if noun.mass:
            return Nominal("the" if u < 0.4 else owner if u < 0.55 or definite else "", noun, adjectives)
        if noun in KIN:
            definite = singular = True
        if not singular and r() < 0.24:
            if definite or u < 0.55:
                determiner = "the" if u < 0.36 else "this" if u < 0.42 else "all the" if u < 0.45 else owner
                determiner = style.determiners.get(determiner, determiner)
                number = self._number() if determiner == "the" and r() < 0.15 else ""
                return Nominal(determiner, noun, adjectives, plural=True, number=number)
            if u < 0.75:
                return Nominal("", noun, adjectives, plural=True, number=self._number())
            determiner = "some" if u < 0.8 else "many" if u < 0.86 else ""
            return Nominal(style.determiners.get(determiner, determiner), noun, adjectives, plural=True)
        if u < 0.42 or (definite and u < 0.6):
            if not simple and r() < 0.18:
                return self._extended(noun, adjectives)
            return Nominal("the", noun, adjectives)
        if u < 0.72 and not definite:
            return Nominal("a", noun, adjectives)
        determiner = owner if u < 0.94 or noun in KIN else "this" if u < 0.98 else "every"
        return Nominal(style.determiners.get(determiner, determiner), noun, adjectives)

    def _extended(self, noun: Noun, adjectives: tuple[Adjective, ...]) -> Nominal:
        """Add to a definite noun a town, a whole that it is part of, or an owner."""
        if not self._style.genitives:
            return Nominal("the", noun, adjectives, owner=None if noun in UNOWNED else self.name())
        u = self._r()
        if noun.kind in "BLO" or (noun.kind == "P" and noun not in KIN and (u < 0.3 or noun in UNOWNED)):
            return Nominal("the", noun, adjectives, origin=self.town())
        if noun.kind in "DSC":
            return Nominal("the", noun, adjectives, of=Nominal("the", self._pick(self._style.noun_table["B"])))
        if u < 0.6:
            return Nominal("the", noun, adjectives, owner=self.name())
        person = self._pick(self._style.noun_table["P"])
        owner = Nominal("the" if person in UNOWNED else self._pick(self._style.owners), person)
        return Nominal("the", noun, adjectives, owner=owner)

    def someone(self, *, subject: Phrase | None = None) -> Phrase:
        """Draw a person: a pronoun, a name or a noun. With a subject, no pronoun that would have to be reflexive."""
        u = self._r()
        if u < 0.25:
            pronouns = self._style.pronouns
            return PRONOUNS[self._pick(pronouns[:6] if subject is not None and subject.pronoun else pronouns)]
        if u < 0.46:
            return self.name()
        if u < 0.5:
            return Coordination(self.name(), Nominal("the", self._pick(self._style.noun_table["P"])))
        return self.nominal("P")

    def _receiver(self, subject: Phrase) -> Phrase:
        person = self.someone(subject=subject)
        bare = isinstance(person, Nominal) and person.determiner == "" and not person.number
        return self.nominal("P", definite=True) if bare else person

    def _plain_subject(self) -> Phrase:
        u = self._r()
        if u < 0.3:
            return PRONOUNS[self._pick(("he", "she", "we", "they"))]
        return self.name() if u < 0.6 else self.nominal("P", definite=True, simple=True)

    def _time(self, tense: str) -> Adjunct | None:
        """Draw a time that fits the tense."""
        group = _TIME_GROUP.get(tense)
        if group is None:
            return None
        u = self._r() if self._style.dates else 1.0
        if group == "past" and u < 0.14:
            year = str(1850 + int(self._r() * 170))
            return Adjunct([("in", "IN"), (year, "CD")], f"im Jahr {year}", time=True)
        if group in ("past", "future") and u < 0.26:
            number, (english, german) = self._pick(_SMALL_NUMBERS), self._pick(_SPANS)
            span, count = [(number, "CD"), (english, "NNS")], GERMAN_NUMBERS[number]
            if group == "past":
                return Adjunct([*span, ("ago", "RB")], f"vor {count} {german}", time=True)
            return Adjunct([("in", "IN"), *span], f"in {count} {german}", time=True)
        if group in ("past", "future") and u < 0.4:
            return self._pick(_DAYS)
        if group != "perfect" and u < 0.5:
            noun = self._pick(self._style.noun_table[self._pick("EU")])
            event = Nominal("the" if noun.kind == "U" else self._pick(("the", "the", "his", "her")), noun)
            return prepositional(*self._pick(_TIME_PREPOSITIONS), event, time=True)
        return self._pick(self._style.time_table[group])

    def _place(self, kinds: str = "BNLYO") -> Adjunct:
        """Draw the place where something is: dative."""
        u = self._r()
        if u < 0.16 and "N" in kinds:
            return Adjunct([("in", "IN"), (town := self.town(), "NNP")], f"in {town}")
        place = self.nominal(kinds, definite=u < 0.8, simple=True, singular=True)
        next_to = place.kind in "BL" and u > 0.8
        return prepositional(*(self._pick(_NEXT_TO) if next_to else _PLACE_PREPOSITIONS[place.kind]), DAT, place)

    def _goal(self, verb: Verb) -> Adjunct:
        """Draw the goal of a motion: accusative, or dative after "zu"."""
        if self._r() < (0.7 if verb.objects == "Y" else 0.15):
            return Adjunct([("to", "TO"), (town := self.town(), "NNP")], f"nach {town}")
        place = self.nominal(verb.objects, definite=True, simple=True, singular=True)
        u = self._r()
        if place.kind in "BN" and u < 0.45:
            return prepositional("into", "in", ACC, place)
        if place.kind == "O" and u < 0.45:
            return prepositional("onto", "auf", ACC, place)
        if place.kind == "N" and u < 0.6:
            return prepositional("through", "durch", ACC, place)
        return prepositional("to", "zu", DAT, place)

    def _target(self, verb: Verb) -> Adjunct:
        """Draw the place where something is put: accusative, after prepositions that take the dative for a location."""
        base = verb.english["VB"]
        kinds = {"pack": "C", "carry": "BN"}.get(base, "CS")
        target = self.nominal(kinds, definite=True, simple=True, singular=True)
        english, german = _PLACE_PREPOSITIONS[target.kind]
        return prepositional(english if base == "place" else f"{english}to", german, ACC, target)

    def _adjuncts_for(self, tense: str, chance: float, frame: str = "accusative") -> tuple[Adjunct, ...]:
        """Draw adjuncts in the order of English: manner or company, place, time."""
        r, found = self._r, []
        if frame != "position" and r() < chance * 0.4:
            if frame not in ("motion", "intransitive") or r() < 0.4:
                found.append(self._pick(self._style.manner_table))
            else:
                company = self.name() if r() < 0.3 else self.nominal("P", definite=True, simple=True)
                found.append(prepositional("with", "mit", DAT, company))
        if frame not in ("position", "motion", "placement") and r() < chance * 0.6:
            found.append(self._place())
        if r() < chance and (time := self._time(tense)) is not None:
            found.append(time)
        return tuple(found)
