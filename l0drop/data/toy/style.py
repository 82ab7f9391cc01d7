"""The words and sentence patterns of a corpus: all that the grammar has, or a few."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from l0drop.data.toy.chance import weighted, zipf
from l0drop.data.toy.clauses import Adjunct
from l0drop.data.toy.lexicon import ADJECTIVES, GERMAN_NUMBERS, NOUNS, VERBS, Adjective, Noun, Verb, listed

T = TypeVar("T")

KINDS = "PATRFWMVKCSDBNLYOHIJEU"
KIN = {NOUNS[word] for word in listed("mother father grandmother grandfather sister brother daughter son aunt uncle")}
UNOWNED = {NOUNS[word] for word in listed("man woman boy girl king queen witness thief countess")}
_COLORS = {c: ADJECTIVES[c] for c in listed("red black white green blue brown yellow")}
_OWNED = listed("friend dog cat horse car house boss coat")


def read_adjuncts(table: str, *, time: bool = False) -> dict[str, Adjunct]:
    """Read lines of `English words | tags | German`."""
    rows = [[field.strip() for field in line.split("|")] for line in table.strip().splitlines()]
    return {en: Adjunct(list(zip(en.split(), tags.split(), strict=True)), de, time) for en, tags, de in rows}


_TIMES = {
    name: read_adjuncts(table, time=True)
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
_MANNERS = read_adjuncts("""carefully | RB | vorsichtig
    quickly | RB | schnell
    secretly | RB | heimlich
    quietly | RB | leise
    slowly | RB | langsam
    immediately | RB | sofort
    patiently | RB | geduldig""")
_FREQUENCIES = read_adjuncts("""often | RB | oft
    always | RB | immer
    never | RB | nie
    sometimes | RB | manchmal
    rarely | RB | selten
    usually | RB | meistens""")
_OPENERS = read_adjuncts("""perhaps | RB | vielleicht
    unfortunately | RB | leider
    suddenly | RB | plötzlich
    of course | IN NN | natürlich
    therefore | RB | deshalb
    fortunately | RB | zum Glück""")
_DEGREES = {"": Adjunct([], ""), "very": Adjunct([("very", "RB")], "sehr "), "too": Adjunct([("too", "RB")], "zu ")}
_TENSES = {
    "present": {
        "present": 9,
        "progressive": 2,
        "can": 2,
        "must": 1,
        "should": 1,
        "may": 1,
        "want": 2,
        "would like": 1,
        "will": 2,
    },
    "past": {"past": 10, "perfect": 4, "was progressive": 1, "could": 1, "wanted": 1},
}
_PLAIN_TENSES = {
    "present": {"present": 8, "can": 1, "must": 1, "want": 1},
    "past": {"past": 9, "could": 1, "wanted": 1},
}
_WAYS = {
    "plain": 30,
    "complex": 20,
    "reported": 12,
    "joint": 12,
    "asked": 9,
    "intended": 7,
    "suffered": 6,
    "existing": 4,
}
_CIRCUMSTANCES = {"because": 3, "although": 1, "when": 2, "while": 1, "before": 1, "after": 1, "if": 1}


def _ranked(items: Sequence[T], size: int = 512) -> list[T]:
    return zipf(items, size) if items else []


def _words(text: str) -> frozenset[str]:
    """Split text at commas and line ends."""
    return frozenset(word.strip() for line in text.splitlines() for word in line.split(",") if word.strip())


def _all_verbs() -> dict[str, Set[str]]:
    return {frame: frozenset(verbs) for frame, verbs in VERBS.items()}


@dataclass(frozen=True, eq=False)
class Style:
    """The words and patterns in use; by default all of them."""

    # words
    nouns: Set[str] = frozenset(NOUNS)  # compounds too
    adjectives: Set[str] = frozenset(ADJECTIVES)
    verbs: Mapping[str, Set[str]] = field(default_factory=_all_verbs)  # by frame
    names: int | None = None  # number of names of each kind, without surnames; None: unlimited
    pronouns: Sequence[str] = ("he", "she", "they", "he", "she", "they", "I", "we", "you")  # six of the third person
    owners: Sequence[str] = ("my", "your", "his", "her", "our", "their")
    determiners: Mapping[str, str] = field(default_factory=dict)  # replacements of determiners
    numbers: Sequence[str] = tuple(GERMAN_NUMBERS)
    number_words: float = 0.7  # share of numbers written as words
    manners: Sequence[str] = tuple(_MANNERS)
    frequencies: Sequence[str] = tuple(_FREQUENCIES)
    openers: Sequence[str] = tuple(_OPENERS)
    degrees: Sequence[str] = ("", "", "", "very", "too")
    times: Mapping[str, Sequence[str]] = field(default_factory=lambda: {k: tuple(v) for k, v in _TIMES.items()})
    dates: bool = True  # years, spans, days of the week and events too
    # patterns, by weight
    tenses: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: _TENSES)
    plain_tenses: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: _PLAIN_TENSES)
    circumstances: Mapping[str, int] = field(default_factory=lambda: _CIRCUMSTANCES)
    ways: Mapping[str, int] = field(default_factory=lambda: _WAYS)
    # optional patterns
    relatives: bool = True
    comparisons: bool = True
    doubts: bool = True  # clauses with "does not know whether"
    genitives: bool = True  # other than those of names; and towns before nouns
    two_adjectives: bool = True
    interjections: bool = True
    lengths: tuple[int, int] = (6, 26)  # words in a sentence, without its final mark

    def known(self, kinds: str) -> str:
        """The kinds among `kinds` that have a noun in use."""
        return kinds.translate(self._unknown)

    @cached_property
    def _unknown(self) -> dict[int, None]:
        return {ord(kind): None for kind in KINDS if not self.noun_table[kind]}

    @cached_property
    def _noun_list(self) -> list[tuple[str, Noun]]:
        return [(name, noun) for name, noun in NOUNS.items() if name in self.nouns]

    @cached_property
    def noun_table(self) -> dict[str, list[Noun]]:
        """Simple nouns by kind."""
        return {k: _ranked([n for name, n in self._noun_list if n.kind == k and " " not in name]) for k in KINDS}

    @cached_property
    def compound_table(self) -> dict[str, list[Noun]]:
        """Compounds by kind."""
        return {k: [n for name, n in self._noun_list if n.kind == k and " " in name] for k in KINDS}

    @cached_property
    def roles(self) -> list[Noun]:
        """Nouns for roles of people."""
        none = {*KIN, *UNOWNED, NOUNS["child"]}
        return _ranked([noun for _, noun in self._noun_list if noun.kind == "P" and noun not in none])

    @cached_property
    def owned(self) -> list[Noun]:
        """Nouns that "whose" can precede."""
        kin = sorted(KIN, key=lambda noun: noun.german)
        used = {noun for _, noun in self._noun_list}
        return [noun for noun in [*kin, *(NOUNS[word] for word in _OWNED)] if noun in used]

    @cached_property
    def adjective_table(self) -> dict[str, list[Adjective]]:
        """Adjectives by the kind of noun that they fit."""
        used = [a for name, a in ADJECTIVES.items() if name in self.adjectives]
        return {k: _ranked([a for a in used if k in a.kinds]) for k in KINDS}

    @cached_property
    def state_table(self) -> dict[str, list[Adjective]]:
        """Adjectives other than colors."""
        return {k: [a for a in table if a.token[0] not in _COLORS] for k, table in self.adjective_table.items()}

    @cached_property
    def color_table(self) -> dict[str, list[Adjective]]:
        """Colors by kind."""
        return {k: [a for c, a in _COLORS.items() if c in self.adjectives and k in a.kinds] for k in KINDS}

    @cached_property
    def compared_table(self) -> dict[str, list[Adjective]]:
        """Adjectives with a comparative by kind."""
        tables = self.adjective_table.items()
        return {k: sorted({a for a in table if a.comparative}, key=lambda a: a.token) for k, table in tables}

    @cached_property
    def _verb_lists(self) -> dict[str, list[Verb]]:
        return {
            frame: [verb for name, verb in verbs.items() if name in self.verbs[frame]] for frame, verbs in VERBS.items()
        }

    @cached_property
    def verb_table(self) -> dict[str, list[Verb]]:
        """Verbs by frame."""
        return {frame: _ranked(verbs) for frame, verbs in self._verb_lists.items()}

    @cached_property
    def does_to(self) -> dict[str, list[Verb]]:
        """Verbs for actions on a thing, by the kind of thing."""
        return {
            k: _ranked([v for v in self._verb_lists["accusative"] if k in v.objects and not v.light]) for k in KINDS
        }

    @cached_property
    def actions(self) -> dict[str, list[Verb]]:
        """The same without verbs of state."""
        return {k: [v for v in table if not v.stative] for k, table in self.does_to.items()}

    @cached_property
    def gives(self) -> dict[str, list[Verb]]:
        """Verbs for giving a thing to somebody, by the kind of thing."""
        return {k: _ranked([v for v in self._verb_lists["double"] if k in v.objects], 64) for k in "TRK"}

    @cached_property
    def helps(self) -> list[Verb]:
        """Verbs for actions that benefit a person."""
        return [verb for verb in self._verb_lists["dative"] if verb.subjects[0] == "P"]

    @cached_property
    def number_table(self) -> list[str]:
        """Number words."""
        return zipf(self.numbers, 256)

    @cached_property
    def manner_table(self) -> list[Adjunct]:
        """Adjuncts of manner."""
        return [_MANNERS[word] for word in self.manners]

    @cached_property
    def frequency_table(self) -> list[Adjunct]:
        """Adjuncts of frequency."""
        return zipf([_FREQUENCIES[word] for word in self.frequencies], 64)

    @cached_property
    def opener_table(self) -> list[Adjunct]:
        """Adjuncts that can open a sentence."""
        return [_OPENERS[word] for word in self.openers]

    @cached_property
    def degree_table(self) -> list[Adjunct]:
        """Adverbs of degree before a predicate adjective."""
        return [_DEGREES[word] for word in self.degrees]

    @cached_property
    def time_table(self) -> dict[str, list[Adjunct]]:
        """Adjuncts of time, by tense."""
        return {group: [_TIMES[group][words] for words in times] for group, times in self.times.items()}

    @cached_property
    def tense_table(self) -> dict[str, list[str]]:
        """Tenses of sentences about the present and about the past."""
        return {group: weighted(tenses) for group, tenses in self.tenses.items()}

    @cached_property
    def plain_tense_table(self) -> dict[str, list[str]]:
        """Tenses of clauses that accompany another clause."""
        return {group: weighted(tenses) for group, tenses in self.plain_tenses.items()}

    @cached_property
    def circumstance_table(self) -> list[str]:
        """Conjunctions."""
        return weighted(self.circumstances)

    @cached_property
    def way_table(self) -> list[str]:
        """Patterns of sentences."""
        return weighted(self.ways)


FULL = Style()
# Every form of a word must be frequent enough for a model to learn it in a minute, so "I" and "you" are not used.
_SMALL_TENSES = {"present": {"present": 8, "can": 1, "must": 1, "want": 1}, "past": {"past": 9, "could": 1}}
SMALL = Style(
    nouns=_words("""man, teacher, friend, father, dog, key, letter, hat, coat, apple, cake, table, chair, garden
        woman, mother, sister, cat, cup, flower, lamp, newspaper, jacket, box, bag, school, kitchen, city
        child, girl, horse, picture, glass, book, shirt, dress, egg, bed, house, room, village, car
        house key, kitchen lamp, kitchen table, garden chair, apple cake, winter coat, summer dress, school book"""),
    adjectives=_words("old, new, big, small, good, young, beautiful, friendly, tired, expensive, red, black"),
    verbs={
        frame: _words(verbs)
        for frame, verbs in {
            "accusative": "see, buy, find, have, look+for, visit, eat, pick~up, call",
            "dative": "help, thank",
            "double": "give, show",
            "prepositional": "wait+for, play+with",
            "intransitive": "sleep",
            "motion": "go, run",
            "position": "live, sit, lie",
            "placement": "place",
            "clausal": "say, know",
            "control": "",
        }.items()
    },
    names=7,
    pronouns=("he", "she", "they", "he", "she", "they", "we", "we"),
    owners=("my", "his", "her", "our", "their"),
    determiners={"every": "the", "all the": "the", "some": "", "many": ""},
    numbers=tuple(GERMAN_NUMBERS)[:11],
    number_words=1.0,
    manners=("quickly", "quietly"),
    frequencies=("often", "always"),
    openers=("perhaps", "unfortunately"),
    degrees=("", "", "", "very"),
    times={"past": ("yesterday", "in the morning"), "present": ("today", "every day"), "future": ("tomorrow", "today")},
    dates=False,
    tenses=_SMALL_TENSES,
    plain_tenses=_SMALL_TENSES,
    circumstances={"because": 1},
    ways={"plain": 11, "complex": 3, "reported": 3, "joint": 3},
    relatives=False,
    comparisons=False,
    doubts=False,
    genitives=False,
    two_adjectives=False,
    interjections=False,
    lengths=(5, 13),
)
