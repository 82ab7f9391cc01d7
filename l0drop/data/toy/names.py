"""Invented names of people and towns: an unlimited number, or a given one."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

from l0drop.data.toy.lexicon import FEMININE, MASCULINE, listed
from l0drop.data.toy.phrases import Name

T = TypeVar("T")

_ONSETS = listed("b d f g h j k l m n p r s t v w z br dr fr gr kl kr st tr")
_VOWELS = listed("a e i o u")
_MIDDLES = listed("l n r m d t k v nd rt lm nk ss ll nn rk")
_GIVEN_ENDS = {
    MASCULINE: ("o", "an", "en", "ik", "ard", "or", "im", "ek", "il", "ert"),
    FEMININE: ("a", "ina", "ela", "ie", "ara", "ika", "una", "ea"),
}
_SURNAME_ENDS = ("mann", "ner", "ke", "ler", "er", "ert", "ing", "ak", "in", "eck")
_TOWN_ENDS = ("berg", "burg", "dorf", "feld", "bach", "au", "tal", "stein", "wald", "furt", "heim", "brunn")


@lru_cache(maxsize=65536)
def _invented(rank: int, ends: tuple[str, ...]) -> str:
    """Compose the name of a given rank from syllables; frequent names are short."""
    state = (rank + 1) * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03
    state = (state ^ (state >> 29)) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    state ^= state >> 32

    def draw(items: Sequence[str]) -> str:
        nonlocal state
        state, at = divmod(state, len(items))
        return items[at]

    name = draw(_ONSETS)
    for _ in range(1 + (rank > 40 and rank % 3 == 0) + (rank > 2000)):
        name += draw(_VOWELS) + draw(_MIDDLES)
    name += draw(ends)
    return name.replace("lll", "ll").replace("nnn", "nn").capitalize()


class Namer:
    """Draws names from one source of random numbers."""

    def __init__(self, uniform: Callable[[], float], *, names: int | None = None) -> None:
        """Draw from `uniform`. names: the number of names of each kind, equally frequent and without surnames."""
        self._r, self._names = uniform, names

    def _pick(self, items: Sequence[T]) -> T:
        return items[int(self._r() * len(items))]

    def _rank(self) -> int:
        """Draw the rank of a name, without an upper bound: half of all draws are among the first 50."""
        if self._names is not None:
            return int(self._r() * self._names)
        return int(50 * ((self._r() + 1e-12) ** -1.3 - 1))

    def town(self) -> str:
        """Draw the name of a town, which is never the name of a person."""
        return _invented(self._rank(), _TOWN_ENDS)

    def name(self, *, surname: float = 0.3) -> Name:
        """Draw a person's name; `surname` is the probability of a surname."""
        gender = FEMININE if self._r() < 0.5 else MASCULINE
        given = _invented(self._rank(), _GIVEN_ENDS[gender])
        full = self._names is None and self._r() < surname
        return Name(f"{given} {_invented(self._rank(), _SURNAME_ENDS)}" if full else given, gender)
