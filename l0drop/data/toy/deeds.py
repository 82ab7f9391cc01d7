"""Clauses: actions and states of a subject."""

from l0drop.data.toy.chance import zipf
from l0drop.data.toy.clauses import Adjunct, Clause, prepositional, relative
from l0drop.data.toy.lexicon import ACC, BE, MANY, MASCULINE, NEUTER, NOM, Adjective, Verb, listed
from l0drop.data.toy.phrases import GAP, Nominal, Phrase
from l0drop.data.toy.scene import Scene
from l0drop.data.toy.style import read_adjuncts

PLACES = "BNLYOHD"  # kinds of nouns
_FRAMES = zipf(listed("accusative prepositional motion double position dative copula placement intransitive"), 96)
_STATE_TENSES = {"present", "past", "perfect", "will"}
_ALREADY = read_adjuncts("already | RB | schon")["already"]
_NO_DEGREE = Adjunct([], "")


def predicate(adjective: Adjective, degree: Adjunct = _NO_DEGREE) -> Adjunct:
    """Write an adjective as a predicate, optionally with a degree such as "very"."""
    return Adjunct([*degree.tokens, adjective.token], degree.german + adjective.german)


def is_universal(phrase: Phrase | None) -> bool:
    """Whether the phrase begins with "every" or "all"."""
    return isinstance(phrase, Nominal) and phrase.determiner in ("every", "all the")


class Narrator(Scene):
    """Draws clauses."""

    def _subject(self, verb: Verb) -> Phrase:
        if verb.subjects[0] != "P" or (len(verb.subjects) > 1 and self._r() < 0.4):
            return self.nominal(verb.subjects.lstrip("P"), definite=self._r() < 0.7)
        subject = self.someone()
        if isinstance(subject, Nominal) and self._style.relatives and self._r() < 0.12:
            self._relate(subject)
        return subject

    def _object(self, verb: Verb, subject: Phrase, *, definite: bool = False) -> Phrase:
        kinds = verb.objects
        if kinds == "P" or (kinds[0] == "P" and self._r() < 0.35):
            person = self.someone(subject=subject)
            return person if person.definite or not definite else self.nominal("P", definite=True)
        return self.nominal(kinds, definite=definite)

    def _relate(self, head: Nominal) -> None:
        """Attach a relative clause to a noun."""
        if head.determiner == "every" or head.of:
            return
        u, gap, group = self._r(), GAP[head.gender], self._pick(("present", "past"))
        if u < 0.2 and head.kind == "P":
            owned = Nominal(
                "whose dessen" if head.gender in (MASCULINE, NEUTER) else "whose deren", self._pick(self._style.owned)
            )
            adjective = self._pick(self._style.state_table[owned.kind])
            relative(head, Clause(owned, BE, group, predicate=predicate(adjective)), "owner")
        elif u < 0.6 and head.kind == "P":
            relative(head, self.clause(group, subject=gap, short=True), "subject")
        elif u < 0.8:
            verb = self._pick(self._style.does_to[head.kind])
            tense = self._tense(group, verb, plain=True)
            adjuncts = () if verb.stative else self._adjuncts_for(tense, 0.25)
            relative(head, Clause(self._plain_subject(), verb, tense, accusative=gap, adjuncts=adjuncts), "accusative")
        elif head.kind == "P":
            verb = self._pick(self._style.helps)
            relative(head, Clause(self._plain_subject(), verb, group, dative=gap), "dative")
        else:
            adjective = self._pick(self._style.state_table[head.kind])
            relative(head, Clause(gap, BE, group, predicate=predicate(adjective)), "subject")

    def _tense(self, group: str, verb: Verb, *, plain: bool = False) -> str:
        tense = self._pick((self._style.plain_tense_table if plain else self._style.tense_table)[group])
        return group if (verb.stative or verb.subjects[0] != "P") and tense not in _STATE_TENSES else tense

    def clause(self, group: str, *, subject: Phrase | None = None, short: bool = False, act: bool = False) -> Clause:
        """Draw a clause about the present or the past.

        short: few adjuncts, a simple tense, and no relative clause at the end. act: neither a state nor negated.
        """
        r = self._r
        frame = self._pick(_FRAMES)
        if frame == "copula" and not act:
            return self._copula(group, subject)
        table = self._style.verb_table[frame if frame != "copula" else "accusative"]
        verb = self._pick(table)
        while (subject is not None and verb.subjects[0] != "P") or (act and verb.stative):
            verb = self._pick(table)
        c = Clause(subject or self._subject(verb), verb, self._tense(group, verb, plain=short))
        closed = self._complement(c, frame, extend=not short)
        if c.tense == group and not act:
            u = r()
            if u < 0.12 and self._deny(c):
                return c
            if u < 0.22 and not short and not verb.stative:
                c.adverb = self._pick(self._style.frequency_table)
                return c
        if c.tense == "perfect" and not verb.stative and r() < 0.3:
            c.adverb = _ALREADY
        elif not closed and not verb.stative:
            if c.accusative is not None and c.accusative.kind in PLACES:
                frame = "placement"  # a place has no adjunct of place
            c.adjuncts = self._adjuncts_for(c.tense, 0.2 if short else 0.6, frame)
            if verb.benefits and r() < 0.12:
                person = self.nominal("P", definite=True, simple=True)
                c.adjuncts = (prepositional("for", "für", ACC, person), *c.adjuncts)
        return c

    def _complement(self, c: Clause, frame: str, *, extend: bool) -> bool:
        """Draw the verb's objects; return whether they end in a relative clause, to which later words would attach."""
        r, verb = self._r, c.verb
        last: Phrase | None = None
        if verb.german_preposition:
            last = self._object(verb, c.subject)
        elif frame == "double":
            c.accusative, c.dative = self.nominal(verb.objects, simple=True), self._receiver(c.subject)
            c.to = verb.needs_to or r() < 0.35 or c.accusative.tokens[0][1] not in ("DT", "PRP$", "CD")
        elif frame == "dative":
            c.dative = self._object(verb, c.subject, definite=True)
        elif frame == "motion":
            c.predicate = self._goal(verb)
        elif frame == "position":
            c.predicate = self._place(verb.objects)
        elif frame == "placement":
            c.accusative, c.predicate = self.nominal(verb.objects, simple=True), self._target(verb)
        elif verb.objects:
            last = c.accusative = self._object(verb, c.subject)
        if extend and self._style.relatives and isinstance(last, Nominal) and r() < 0.16:
            self._relate(last)
        if last is not None and verb.german_preposition:
            c.predicate = prepositional(verb.english_preposition, verb.german_preposition, verb.object_case, last)
        return last is not None and bool(last.relative)

    def _deny(self, c: Clause) -> bool:
        """Negate a clause, unless "every" or "all" would make the scope of the negation unclear."""
        thing = c.accusative
        if any(is_universal(phrase) for phrase in (c.subject, c.dative, thing)):
            return False
        c.negated = True
        if isinstance(thing, Nominal) and not thing.definite:
            word = "any" if thing.plural or thing.noun.mass else "a"
            c.accusative = Nominal(word, thing.noun, thing.adjectives, plural=thing.plural)
        return True

    def _copula(self, group: str, subject: Phrase | None) -> Clause:
        """Draw a clause with "to be": a predicate adjective or noun."""
        r, style = self._r, self._style
        if subject is None:
            subject = self.someone() if r() < 0.45 else self.nominal("TRMVKCSDBNLYOHIEF", definite=True)
        kind, u = subject.kind, r()
        c = Clause(subject, BE, group)
        if u < 0.2 and style.comparisons and style.compared_table[kind] and not subject.pronoun:
            other = self.nominal(kind, definite=True, simple=True)
            english, german = self._pick(style.compared_table[kind]).comparative
            c.predicate = Adjunct(
                [(english, "JJR"), ("than", "IN"), *other.tokens], f"{german} als {other.german(NOM)}"
            )
        elif u < 0.38 and kind == "P" and subject.agreement != MANY:
            role = Nominal(
                "a", self._pick(style.roles), (self._pick(self._style.adjective_table["P"]),) if r() < 0.6 else ()
            )
            c.negated = r() < 0.3
            c.predicate = Adjunct(role.tokens, role.denied(NOM) if c.negated else role.german(NOM), denies=c.negated)
        else:
            degree = self._pick(style.degree_table)
            c.predicate = predicate(self._pick(self._style.state_table[kind]), degree)
            c.negated = r() < 0.12 and not degree.tokens
        return c
