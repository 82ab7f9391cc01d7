"""A small English to German, made by a grammar of the project's own: a corpus of any size without a download.

The German is a function of the English, but not word by word: an article takes its gender from the noun, its case
from the verb or preposition and its definiteness from the English article; verbs split, move to the end, and choose
the case of their objects. What a model must carry from one word to another is what a gate between encoder and decoder
can learn to reroute.

A sentence is built from phrases, which stand in a `Clause` that is written in both languages at once. `Scene` draws
the phrases, `Narrator` the clauses and `Speaker` the sentences.
"""

import random
from collections.abc import Iterator

from l0drop.data.toy.chance import Split, mixed, split_seed, weighted
from l0drop.data.toy.clauses import (
    Adjunct,
    Clause,
    Text,
    infinitive,
    pair,
    prepositional,
    question,
    statement,
    subordinate,
)
from l0drop.data.toy.deeds import PLACES, Narrator, is_universal, predicate
from l0drop.data.toy.lexicon import BE, DAT, EXIST, FEMININE, MASCULINE, NEUTER, PLURAL, RAIN, SNOW, VERBS, listed
from l0drop.data.toy.pair import ToyPair
from l0drop.data.toy.phrases import GAP, IT, PRONOUNS, THERE, Nominal, Phrase
from l0drop.data.toy.style import FULL, SMALL, read_adjuncts

_CONJUNCTIONS = read_adjuncts("""because | IN | weil
    although | IN | obwohl
    while | IN | während
    before | IN | bevor
    after | IN | nachdem
    if | IN | wenn
    that | IN | dass
    whether | IN | ob""")
_WHEN = {"past": Adjunct([("when", "WRB")], "als"), "present": Adjunct([("when", "WRB")], "wenn")}
_MOTIONS = {VERBS["motion"][word] for word in listed("go run travel fly hurry march ride")}
_PASSIVE_TENSES = {
    "present": weighted({"present": 1, "must": 1, "will": 1, "should": 1, "can": 1}),
    "past": weighted({"past": 3, "could": 1}),
}


def _timeless(clause: Clause) -> tuple[Adjunct, ...]:
    return tuple(adjunct for adjunct in clause.adjuncts if not adjunct.time)


def _echo(person: Phrase) -> Phrase:
    """Give the pronoun for somebody named before."""
    if person.pronoun:
        return person
    return PRONOUNS["they" if person.gender == PLURAL else "she" if person.gender == FEMININE else "he"]


class Speaker(Narrator):
    """Draws sentences."""

    def _plainly(self, group: str) -> Text:
        """Say one thing, sometimes with something in front of the subject."""
        c = self.clause(group)
        u = self._r()
        if u < 0.4 and c.adjuncts and c.adjuncts[-1].time:
            c.front, c.adjuncts = c.adjuncts[-1], c.adjuncts[:-1]
        elif u < 0.12:
            c.front = self._pick(self._style.opener_table)
        return statement(c)

    def _circumstance(self, group: str, main: Clause | None, *, reason: bool) -> Clause:
        """Draw the clause that goes with a main clause: the weather, the object, the subject, or anything else.

        "it" is the object of the main clause, or nobody where the weather is meant.
        """
        u = self._r()
        if u < 0.15:
            return Clause(IT[NEUTER], RAIN if u < 0.1 else SNOW, group)
        if main is not None:
            thing, subject = main.accusative, main.subject
            if u < 0.4 and isinstance(thing, Nominal) and thing.kind != "P" and reason:
                return Clause(
                    IT[thing.gender], BE, group, predicate=predicate(self._pick(self._style.state_table[thing.kind]))
                )
            if u < 0.7 and subject.kind == "P" and subject.gender != NEUTER:
                return self.clause(group, subject=_echo(subject), short=True, act=not reason)
        return self.clause(group, short=True, act=not reason)

    def _complex(self, group: str) -> Text:
        """Say something and why, when or in spite of what."""
        word = self._pick(self._style.circumstance_table)
        if word in ("after", "if"):
            group = "past" if word == "after" else "present"
        reason = word in ("because", "although")
        main, opens = self.clause(group, short=True, act=not reason), self._r() < 0.35
        other = self._circumstance(group, None if opens else main, reason=reason)
        if not reason:  # the clauses are each other's time
            main.adjuncts, other.adjuncts = _timeless(main), _timeless(other)
        if word == "after":
            other.tense = "pluperfect"
        sub = subordinate(_WHEN[group] if word == "when" else _CONJUNCTIONS[word], other)
        if opens:
            main.front = Adjunct([*sub.tokens, (",", ",")], f"{sub.german},")
        else:
            main.tail = sub
        return statement(main)

    def _reported(self, group: str) -> Text:
        """Say what somebody says or knows."""
        subject = self.someone()
        doubt = self._style.doubts and self._r() < 0.15 and not is_universal(subject)
        verb = VERBS["clausal"]["know"] if doubt else self._pick(self._style.verb_table["clausal"])
        told = self.clause(group if self._r() < 0.8 else "past")
        c = Clause(subject, verb, group, negated=doubt)
        if group == "past" and not doubt and self._r() < 0.3 and "perfect" in self._style.tenses[group]:
            c.tense = "perfect"
        c.tail = subordinate(_CONJUNCTIONS["whether" if doubt else "that"], told)
        return statement(c)

    def _sequel(self, first: Clause, group: str) -> Clause:
        """Draw what the subject of a clause does next, with the same thing where there is one."""
        thing, subject = first.accusative, first.subject
        if isinstance(thing, Nominal) and thing.kind != "P" and self._style.actions[thing.kind]:
            c = Clause(subject, self._pick(self._style.actions[thing.kind]), first.tense, accusative=IT[thing.gender])
            if thing.kind in "TRK" and self._r() < 0.6:
                c.verb, c.dative, c.to = self._pick(self._style.gives[thing.kind]), self._receiver(subject), True
            if c.verb is not first.verb:
                return c
        return self.clause(group, subject=subject, short=True)

    def _joint(self, group: str) -> Text:
        """Say two things: of one subject without naming it twice, or of two."""
        r, first = self._r, self.clause(group, short=True)
        english, german = statement(first)
        if first.subject.kind != "P" or first.negated or r() < 0.5:
            more, mehr = statement(self.clause(group, short=True))
            word, wort = ("but", ", aber") if r() < 0.5 else ("and", " und")
            return [*english, (",", ","), (word, "CC"), *more], f"{german}{wort} {mehr}"
        more, mehr = statement(self._sequel(first, group), subject=False)
        return [*english, ("and", "CC"), *more], f"{german} und {mehr}"

    def _asked(self, group: str) -> Text:
        """Ask whether, why, where, who, whom or what."""
        u = self._r()
        if u < 0.15:
            return question(self.clause(group, subject=PRONOUNS["who"]))
        if u < 0.3:
            verb = self._pick(self._style.helps if u < 0.2 else self._style.verb_table["accusative"])
            c = Clause(self._plain_subject(), verb, group)
            c.adjuncts = self._adjuncts_for(group, 0.8, "position" if verb.stative else "accusative")
            if u < 0.2:
                c.dative, c.front = GAP[MASCULINE], Adjunct([("who", "WP")], "wem")
            else:
                human = verb.objects == "P"
                c.front = Adjunct([("who", "WP")], "wen") if human else Adjunct([("what", "WP")], "was")
                c.accusative = GAP[NEUTER]
            return question(c)
        c = self.clause(group, short=u > 0.6)
        if c.subject is PRONOUNS["I"] or c.subject is PRONOUNS["we"]:
            c.subject = PRONOUNS["you"]
        if u > 0.8 and c.verb in _MOTIONS and not c.negated:
            c.front, c.predicate = Adjunct([("where", "WRB")], "wohin"), None
        elif u > 0.8 and c.accusative is not None and not c.verb.stative and not c.negated:
            c.front, c.adjuncts = Adjunct([("where", "WRB")], "wo"), ()
        elif u > 0.6:
            c.front = Adjunct([("why", "WRB")], "warum")
        return question(c)

    def _intended(self, group: str) -> Text:
        """Say what somebody tries to do, or what somebody goes somewhere for."""
        subject, purpose = self.someone(), self._r() < 0.5
        verb = self._pick(self._style.verb_table["motion" if purpose else "control"])
        c = Clause(subject, verb, self._tense(group, verb) if purpose else group)
        if purpose:
            c.predicate = self._goal(verb)
        if self._r() < 0.3:
            c.front = self._time(c.tense)
        deed = self.clause(group, subject=subject, short=True, act=True)
        deed.adjuncts = _timeless(deed)
        c.tail = infinitive(deed, purpose=purpose)
        return statement(c)

    def _suffered(self, group: str) -> Text:
        """Say what is done to something, and by whom."""
        kind = self._pick(self._style.known("TRVBDKMCAI"))
        c = Clause(
            self.nominal(kind, definite=True), self._pick(self._style.actions[kind]), self._pick(_PASSIVE_TENSES[group])
        )
        c.passive, c.adjuncts = True, self._adjuncts_for(c.tense, 0.7, "placement" if kind in PLACES else "accusative")
        if self._r() < 0.6:
            agent = self.name() if self._r() < 0.3 else self.nominal("P", simple=True)
            c.adjuncts = (prepositional("by", "von", DAT, agent), *c.adjuncts)
        return statement(c)

    def _existing(self, group: str) -> Text:
        """Say that there is something somewhere."""
        kind = self._pick(self._style.known("BBLOPA"))
        thing = self.nominal(kind, simple=True)
        while thing.definite:
            thing = self.nominal(kind, simple=True)
        if self._r() < 0.2 and not thing.number:
            thing = Nominal("no", thing.noun, thing.adjectives, plural=thing.plural)
        if kind in "BLO" and self._r() < 0.4:
            place = Adjunct([("in", "IN"), (town := self.town(), "NNP")], f"in {town}")
        else:
            where = self.nominal("B" if kind == "P" else "N", definite=True, simple=True, singular=True)
            place = prepositional("in", "in", DAT, where)
        front = self._time(group) if group == "past" and self._r() < 0.6 else None
        return statement(Clause(THERE[thing.plural], EXIST, group, accusative=thing, adjuncts=(place,), front=front))

    def sentence(self) -> ToyPair:
        """Draw a sentence and its final mark, as long as the style allows."""
        style = self._style
        shortest, longest = style.lengths
        while True:
            way = self._pick(style.way_table)
            text = _WAYS[way](self, "past" if self._r() < 0.5 else "present")
            end = "?" if way == "asked" else "."
            if end == "." and style.interjections and self._r() < 0.03:
                word, german = self._pick((("yes", "ja"), ("no", "nein"), ("well", "nun")))
                text = [(word, "UH"), (",", ","), *text[0]], f"{german}, {text[1]}"
            if shortest <= len(text[0]) <= longest:
                return pair(text, end)


_WAYS = {
    "plain": Speaker._plainly,
    "complex": Speaker._complex,
    "reported": Speaker._reported,
    "joint": Speaker._joint,
    "asked": Speaker._asked,
    "intended": Speaker._intended,
    "suffered": Speaker._suffered,
    "existing": Speaker._existing,
}


def translation(n: int, seed: int, *, start: int = 0, small: bool = False) -> Iterator[ToyPair]:
    """Yield pairs `start` to `start + n - 1` of the corpus with this seed; pair i depends on seed and i alone.

    A small corpus has few words and simple sentences.
    """
    generator = random.Random()
    speaker = Speaker(generator.random, SMALL if small else FULL)
    for index in range(start, start + n):
        generator.seed(mixed(seed, index))
        yield speaker.sentence()


def translation_split(split: Split, n: int, seed: int, *, small: bool = False) -> Iterator[ToyPair]:
    """Yield n pairs of a split; splits are drawn alike but from seeds of their own."""
    return translation(n, split_seed(split, seed), small=small)
