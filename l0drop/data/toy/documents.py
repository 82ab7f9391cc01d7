"""Several reports of one event and a short summary, generated from templates: inputs of any length.

The reports repeat and paraphrase the same facts among irrelevant filler; some facts occur in one report only. Where
reports disagree about a number, the police or the officials are right; witnesses count only where those say nothing.
So the summary is a function of the source. Names, places, dates and numbers are open-ended, so the summary cannot be
written without reading the source.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from l0drop.data.toy.chance import ToySplit, mixed, split_seed
from l0drop.data.toy.events import CHOICES, EVENTS, FILLERS, HEADERS, TAGS, Event, Fill, Template
from l0drop.data.toy.lexicon import GERMAN_NUMBERS
from l0drop.data.toy.names import Namer
from l0drop.data.toy.pair import ToyPair, ToyToken, joined

T = TypeVar("T")

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_RANGES = {"small": (2, 12), "count": (3, 300), "length": (40, 900), "large": (100, 90_000), "percent": (30, 95)}
_NUMBER_WORDS = dict(enumerate(list(GERMAN_NUMBERS)[:11], start=2))  # two to twelve


class _Reporter(Namer):
    """Draws documents."""

    def _whole(self, low: int, high: int) -> int:
        return low + int(self._r() * (high - low + 1))

    def _value(self, kind: str, used: set[str]) -> str:
        """Draw a slot's value that is not in use yet, in the form of the summary."""
        while True:
            if kind == "town":
                value = self.town()
            elif kind == "person":
                value = self.name(surname=1.0).text
            elif kind == "date":
                value = f"{self._whole(1, 28)} {self._pick(_MONTHS)}"
            elif kind == "score":
                goals = self._whole(1, 6)
                value = f"{goals} to {self._whole(0, goals - 1)}"
            elif kind in _RANGES:
                low, high = _RANGES[kind]
                value = str(int(low * (high / low) ** self._r()))
            else:
                value = self._pick(CHOICES[kind].split("; "))
            if value not in used:
                used.add(value)
                return value

    def _written(self, kind: str, value: str) -> list[ToyToken]:
        """Write a value as in a report: small numbers sometimes as words, dates in either order."""
        if kind == "date" and self._r() < 0.4:
            return _value_tokens(kind, value)[::-1]
        if kind in _RANGES and int(value) in _NUMBER_WORDS and self._r() < 0.5:
            return [(_NUMBER_WORDS[int(value)], "CD")]
        return _value_tokens(kind, value)

    def _noise(self, town: str, used: set[str]) -> Fill:
        """Draw the slots of the filler sentences, which state no facts."""
        year, degrees, inhabitants = self._whole(1200, 1990), self._whole(1, 30), self._whole(2_000, 90_000)
        return {
            "town": [(town, "NNP")],
            "elsewhere": [(self._value("town", used), "NNP")],
            "passerby": _value_tokens("person", self._value("person", used)),
            "year": [(str(year), "CD")],
            "degrees": [(str(degrees), "CD")],
            "inhabitants": [(str(inhabitants), "CD")],
        }

    def document(self, reports: int) -> ToyPair:
        """Draw an event, reports of it, and their summary."""
        r, event, used = self._r, self._pick(EVENTS), set[str]()
        values = {slot: self._value(kind, used) for slot, kind in event.slots.items()}
        stated = [(ways, values) for slot, ways in event.facts.items() if slot not in event.rumors]
        for slot, ways in event.rumors.items():
            rumor = values | {slot: self._value(event.slots[slot], used)}
            u = r()
            if u < 0.85:
                stated.append((event.facts[slot], values))
            if u > 0.25:
                stated.append((ways, rumor))
            if u >= 0.85:
                values = rumor
        homes = [int(r() * reports) for _ in stated]  # the report that always states the fact
        turns = [int(r() * 12) for _ in stated]  # consecutive reports use different wordings
        opening, fillers = int(r() * 12), list[Template]()
        tokens: list[ToyToken] = []
        for report in range(reports):
            tokens += self._pick(HEADERS).fill({"paper": [(self.town(), "NNP")]})
            tokens += _turn(event.openings, opening + report).fill(self._slots(event, values))
            body = [
                _turn(ways, turn + report).fill(self._slots(event, facts))
                for (ways, facts), home, turn in zip(stated, homes, turns, strict=True)
                if home == report or r() < 0.45
            ]
            length = self._whole(4, 10) - 1
            while len(body) < length:
                fillers = fillers or self._shuffled(FILLERS)
                body.append(fillers.pop().fill(self._noise(values["town"], used)))
            for sentence in self._shuffled(body):
                tokens += sentence
        words, tags = zip(*tokens, strict=True)
        facts = {slot: _value_tokens(kind, values[slot]) for slot, kind in event.slots.items()}
        summary = [word for template in event.summary for word, _ in template.fill(facts)]
        return ToyPair(joined(words), joined(summary), words, tags)

    def _slots(self, event: Event, values: Mapping[str, str]) -> Fill:
        return {slot: self._written(kind, values[slot]) for slot, kind in event.slots.items()}

    def _shuffled(self, items: list[T]) -> list[T]:
        return sorted(items, key=lambda _: self._r())


def _turn(items: Sequence[T], at: int) -> T:
    return items[at % len(items)]


def _value_tokens(kind: str, value: str) -> list[ToyToken]:
    """Tag the words of a value."""
    if kind in ("town", "person"):
        return [(word, "NNP") for word in value.split()]
    if kind == "date":
        day, month = value.split()
        return [(day, "CD"), (month, "NNP")]
    return [(word, "CD" if word.isdigit() else TAGS[word]) for word in value.split()]


def documents(
    n: int, seed: int, *, reports: int = 3, min_reports: int | None = None, start: int = 0
) -> Iterator[ToyPair]:
    """Yield documents `start` to `start + n - 1` of the corpus with this seed.

    Each has `reports` reports of 4 to 10 sentences. With `min_reports` the number varies from there to `reports`, with
    a probability inverse to it: many short documents and a few long ones. Document i depends on the seed, the numbers
    of reports and i alone.
    """
    fewest = reports if min_reports is None else min_reports
    if not 1 <= fewest <= reports:
        raise ValueError(f"reports must be at least 1 and min_reports at most reports, got {min_reports} and {reports}")
    counts = range(fewest, reports + 1)
    weights = [1 / count for count in counts]
    generator = random.Random()
    reporter = _Reporter(generator.random)
    for index in range(start, start + n):
        generator.seed(mixed(mixed(seed, reports), index))
        yield reporter.document(reports if min_reports is None else generator.choices(counts, weights)[0])


def documents_split(
    split: ToySplit, n: int, seed: int, *, reports: int = 3, min_reports: int | None = None
) -> Iterator[ToyPair]:
    """Yield n documents of a split; each split has its own seed."""
    return documents(n, split_seed(split, seed), reports=reports, min_reports=min_reports)
