"""Who and what a sentence is about, and when, where and how."""

from l0drop.data.toy.chance import zipf
from l0drop.data.toy.clauses import Adjunct, prepositional
from l0drop.data.toy.lexicon import ACC, ADJECTIVES, DAT, GEN, GERMAN_NUMBERS, NOUNS, Adjective, Noun, Verb, listed
from l0drop.data.toy.names import Namer
from l0drop.data.toy.phrases import PRONOUNS, Nominal, Pair, Phrase

KINDS = "PATRFWMVKCSDBNLYOHIJEU"
NOUN_TABLE = {k: zipf([n for name, n in NOUNS.items() if n.kind == k and " " not in name]) for k in KINDS}
_COMPOUND_TABLE = {k: [n for name, n in NOUNS.items() if n.kind == k and " " in name] for k in KINDS}
_COLORS = {c: ADJECTIVES[c] for c in listed("red black white green blue brown yellow")}
_COLOR_TABLE = {k: [a for a in _COLORS.values() if k in a.kinds] for k in KINDS}
ADJECTIVE_TABLE = {k: zipf([a for a in ADJECTIVES.values() if k in a.kinds]) for k in KINDS}
STATE_TABLE = {k: [a for a in table if a.token[0] not in _COLORS] for k, table in ADJECTIVE_TABLE.items()}
KIN = {NOUNS[word] for word in listed("mother father grandmother grandfather sister brother daughter son aunt uncle")}
UNOWNED = {NOUNS[word] for word in listed("man woman boy girl king queen witness thief countess")}
_OWNERS = listed("my your his her our their")
_NUMBER_TABLE = zipf(list(GERMAN_NUMBERS), 256)
_SMALL_NUMBERS = list(GERMAN_NUMBERS)[:11]


def read_adjuncts(table: str, *, time: bool = False) -> dict[str, Adjunct]:
    """Read lines of `English words | tags | German`."""
    rows = [[field.strip() for field in line.split("|")] for line in table.strip().splitlines()]
    return {en: Adjunct(list(zip(en.split(), tags.split(), strict=True)), de, time) for en, tags, de in rows}


_TIMES = {
    name: list(read_adjuncts(table, time=True).values())
    for name, table in {
        "past": """yesterday | NN | gestern
            last week | JJ NN | letzte Woche
            last year | JJ NN | letztes Jahr
            last summer | JJ NN | im letzten Sommer
            in the morning | IN DT NN | am Morgen
            in the evening | IN DT NN | am Abend
            last night | JJ NN | letzte Nacht""",
        "perfect": """today | NN | heute
            this week | DT NN | diese Woche
            this year | DT NN | dieses Jahr""",
        "present": """today | NN | heute
            every day | DT NN | jeden Tag
            every morning | DT NN | jeden Morgen
            every week | DT NN | jede Woche
            in the evening | IN DT NN | am Abend""",
        "future": """tomorrow | NN | morgen
            today | NN | heute
            soon | RB | bald
            next week | JJ NN | nächste Woche
            next year | JJ NN | nächstes Jahr
            in the morning | IN DT NN | am Morgen""",
    }.items()
}
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
_MANNERS = list(
    read_adjuncts("""carefully | RB | vorsichtig
        quickly | RB | schnell
        secretly | RB | heimlich
        quietly | RB | leise
        slowly | RB | langsam
        immediately | RB | sofort
        patiently | RB | geduldig""").values()
)
_PLACE_PREPOSITIONS = {
    **dict.fromkeys("BNC", ("in", "in")),
    **dict.fromkeys("LYD", ("at", "an")),
    **dict.fromkeys("OHS", ("on", "auf")),
}
_BESIDE = [("behind", "hinter"), ("next to", "neben"), ("in front of", "vor")]


class Scene(Namer):
    """Draws the phrases and adjuncts of a clause."""

    def _number(self) -> str:
        return self._pick(_NUMBER_TABLE) if self._r() < 0.7 else str(int(13 + 10 ** (1 + 2.5 * self._r())))

    def nominal(self, kinds: str, *, definite: bool = False, simple: bool = False, singular: bool = False) -> Nominal:
        """Draw a noun of one of these kinds with what goes before it, and unless it is to be simple, an owner."""
        r = self._r
        kind = kinds[int(r() * len(kinds))]
        table = _COMPOUND_TABLE[kind]
        noun = self._pick(table if table and r() < 0.14 else NOUN_TABLE[kind])
        adjectives: tuple[Adjective, ...] = ()
        u = r()
        if u < 0.42:
            adjectives = (self._pick(ADJECTIVE_TABLE[kind]),)
            if u < 0.05 and _COLOR_TABLE[kind]:
                adjectives = (self._pick(STATE_TABLE[kind]), self._pick(_COLOR_TABLE[kind]))
        u = r()
        owner = "the" if noun in UNOWNED or kind in "LYHU" else self._pick(_OWNERS)
        if noun.mass:
            return Nominal("the" if u < 0.4 else owner if u < 0.55 or definite else "", noun, adjectives)
        if noun in KIN:
            definite = singular = True
        if not singular and r() < 0.24:
            if definite or u < 0.55:
                determiner = "the" if u < 0.36 else "this" if u < 0.42 else "all the" if u < 0.45 else owner
                number = self._number() if determiner == "the" and r() < 0.15 else ""
                return Nominal(determiner, noun, adjectives, plural=True, number=number)
            if u < 0.75:
                return Nominal("", noun, adjectives, plural=True, number=self._number())
            return Nominal("some" if u < 0.8 else "many" if u < 0.86 else "", noun, adjectives, plural=True)
        if u < 0.42 or (definite and u < 0.6):
            if not simple and r() < 0.18:
                return self._extended(noun, adjectives)
            return Nominal("the", noun, adjectives)
        if u < 0.72 and not definite:
            return Nominal("a", noun, adjectives)
        return Nominal(owner if u < 0.94 or noun in KIN else "this" if u < 0.98 else "every", noun, adjectives)

    def _extended(self, noun: Noun, adjectives: tuple[Adjective, ...]) -> Nominal:
        """Give a definite noun a town, a whole that it is part of, or an owner."""
        u = self._r()
        if noun.kind in "BLO" or (noun.kind == "P" and noun not in KIN and (u < 0.3 or noun in UNOWNED)):
            return Nominal("the", noun, adjectives, origin=self.town())
        if noun.kind in "DSC":
            return Nominal("the", noun, adjectives, of=Nominal("the", self._pick(NOUN_TABLE["B"])))
        if u < 0.6:
            return Nominal("the", noun, adjectives, owner=self.name())
        person = self._pick(NOUN_TABLE["P"])
        owner = Nominal("the" if person in UNOWNED else self._pick(_OWNERS), person)
        return Nominal("the", noun, adjectives, owner=owner)

    def someone(self, *, beside: Phrase | None = None) -> Phrase:
        """Draw a person: a pronoun, a name or a noun; beside a subject, no pronoun that would have to be reflexive."""
        u = self._r()
        if u < 0.25:
            pronouns = ("he", "she", "they", "he", "she", "they", "I", "we", "you")
            return PRONOUNS[self._pick(pronouns if beside is None else pronouns[: 6 if beside.pronoun else 9])]
        if u < 0.46:
            return self.name()
        if u < 0.5:
            return Pair(self.name(), Nominal("the", self._pick(NOUN_TABLE["P"])))
        return self.nominal("P")

    def _receiver(self, subject: Phrase) -> Phrase:
        person = self.someone(beside=subject)
        bare = isinstance(person, Nominal) and person.determiner == "" and not person.number
        return self.nominal("P", definite=True) if bare else person

    def _plain_subject(self) -> Phrase:
        u = self._r()
        if u < 0.3:
            return PRONOUNS[self._pick(("he", "she", "we", "they"))]
        return self.name() if u < 0.6 else self.nominal("P", definite=True, simple=True)

    def _time(self, tense: str) -> Adjunct | None:
        """Draw a time that the tense allows."""
        group = _TIME_GROUP.get(tense)
        if group is None:
            return None
        u = self._r()
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
            noun = self._pick(NOUN_TABLE[self._pick("EU")])
            event = Nominal("the" if noun.kind == "U" else self._pick(("the", "the", "his", "her")), noun)
            return prepositional(*self._pick(_TIME_PREPOSITIONS), event, time=True)
        return self._pick(_TIMES[group])

    def _place(self, kinds: str = "BNLYO") -> Adjunct:
        """Draw where something is: dative."""
        u = self._r()
        if u < 0.16 and "N" in kinds:
            return Adjunct([("in", "IN"), (town := self.town(), "NNP")], f"in {town}")
        place = self.nominal(kinds, definite=u < 0.8, simple=True, singular=True)
        beside = place.kind in "BL" and u > 0.8
        return prepositional(*(self._pick(_BESIDE) if beside else _PLACE_PREPOSITIONS[place.kind]), DAT, place)

    def _goal(self, verb: Verb) -> Adjunct:
        """Draw where a motion goes: accusative, or dative after "zu"."""
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
        """Draw where something is put: accusative after the prepositions that take a dative for where it is."""
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
                found.append(self._pick(_MANNERS))
            else:
                company = self.name() if r() < 0.3 else self.nominal("P", definite=True, simple=True)
                found.append(prepositional("with", "mit", DAT, company))
        if frame not in ("position", "motion", "placement") and r() < chance * 0.6:
            found.append(self._place())
        if r() < chance and (time := self._time(tense)) is not None:
            found.append(time)
        return tuple(found)
