"""Word order in both languages, in sentences that are known to be correct."""

from collections.abc import Callable
from typing import Any

import pytest

from l0drop.data.toy.clauses import (
    Adjunct,
    BothSides,
    Clause,
    infinitive,
    pair,
    question,
    relative,
    statement,
    subordinate,
)
from l0drop.data.toy.lexicon import ACC, BE, EXIST, NEUTER, RAIN
from l0drop.data.toy.phrases import GAP, IT, PRONOUNS, THERE, Nominal
from tests.data.toy.sentences import adjective, clause, conjunction, does, np, verb, where


def opened_by(sub: Adjunct, main: Clause) -> BothSides:
    main.front = Adjunct([*sub.tokens, (",", ",")], f"{sub.german},")
    return statement(main)


def lost_ring() -> Nominal:
    return relative(np("the", "ring"), does("you", "lose", GAP[0], "past"), "accusative")


def rained() -> Adjunct:
    return subordinate(conjunction("because", "weil"), clause(IT[NEUTER], RAIN, "past"))


def stayed(**more: Any) -> Clause:
    place = where("in", "in", np("the", "house"))
    return clause(np("the", "boy"), verb("position", "stay"), "past", predicate=place, **more)


def known(told: Clause) -> BothSides:
    tail = subordinate(conjunction("that", "dass"), told)
    return statement(clause("I", verb("clausal", "know"), tail=tail))


def tried(subject: str, deed: Clause) -> BothSides:
    return statement(clause(subject, verb("control", "try"), tail=infinitive(deed)))


GOLDEN: list[tuple[Callable[[], BothSides], str, str]] = [
    # the two positions of the verb
    (
        lambda: statement(does("she", "pick~up", np("the", "child"))),
        "She picks up the child.",
        "Sie holt das Kind ab.",
    ),
    (
        lambda: statement(does("she", "pick~up", PRONOUNS["he"], "perfect")),
        "She has picked him up.",
        "Sie hat ihn abgeholt.",
    ),
    (
        lambda: known(does("he", "turn~off", np("the", "radio"))),
        "I know that he turns off the radio.",
        "Ich weiß, dass er das Radio ausschaltet.",
    ),
    (
        lambda: known(clause(np("the", "guest"), verb("intransitive", "arrive"), "perfect")),
        "I know that the guest has arrived.",
        "Ich weiß, dass der Gast angekommen ist.",
    ),
    (
        lambda: statement(does("you", "write", np("a", "letter"), "must")),
        "You must write a letter.",
        "Du musst einen Brief schreiben.",
    ),
    (
        lambda: statement(
            does("we", "visit", np("the", "museum"), "past", front=Adjunct([("yesterday", "NN")], "gestern"))
        ),
        "Yesterday we visited the museum.",
        "Gestern besuchten wir das Museum.",
    ),
    (
        lambda: statement(does(np("the", "engineer"), "repair", np("the", "engine"), "progressive")),
        "The engineer is repairing the engine.",
        "Der Ingenieur repariert gerade den Motor.",
    ),
    (
        lambda: statement(
            does("he", "buy", np("a", "coat"), "past", adjuncts=(where("for", "für", np("my", "sister"), ACC),))
        ),
        "He bought a coat for my sister.",
        "Er kaufte für meine Schwester einen Mantel.",
    ),
    # negation
    (
        lambda: statement(does(np("the", "student"), "understand", np("the", "question"), negated=True)),
        "The student does not understand the question.",
        "Der Student versteht die Frage nicht.",
    ),
    (
        lambda: statement(does("we", "have", np("a", "car"), negated=True)),
        "We do not have a car.",
        "Wir haben kein Auto.",
    ),
    (
        lambda: statement(does("they", "eat", np("any", "apple", "sour", plural=True), "past", negated=True)),
        "They did not eat any sour apples.",
        "Sie aßen keine sauren Äpfel.",
    ),
    # clauses in clauses
    (
        lambda: statement(stayed(tail=rained())),
        "The boy stayed in the house because it rained.",
        "Der Junge blieb im Haus, weil es regnete.",
    ),
    (
        lambda: opened_by(rained(), stayed()),
        "Because it rained, the boy stayed in the house.",
        "Weil es regnete, blieb der Junge im Haus.",
    ),
    (
        lambda: statement(
            does(
                relative(
                    np("the", "man"),
                    clause(GAP[0], verb("position", "live"), predicate=where("in", "in", np("the", "village"))),
                    "subject",
                ),
                "sell",
                np("his", "car"),
            )
        ),
        "The man who lives in the village sells his car.",
        "Der Mann, der im Dorf wohnt, verkauft sein Auto.",
    ),
    (
        lambda: statement(does("she", "find", lost_ring(), "perfect")),
        "She has found the ring which you lost.",
        "Sie hat den Ring gefunden, den du verloren hast.",
    ),
    (
        lambda: statement(
            clause(
                relative(np("the", "woman"), clause("we", verb("dative", "thank"), dative=GAP[1]), "dative"),
                verb("intransitive", "smile"),
            )
        ),
        "The woman whom we thank smiles.",
        "Die Frau, der wir danken, lächelt.",
    ),
    (
        lambda: statement(
            clause(
                relative(
                    np("the", "child"),
                    clause(np("whose dessen", "father"), BE, predicate=adjective("sick")),
                    "owner",
                ),
                verb("intransitive", "cry"),
            )
        ),
        "The child whose father is sick cries.",
        "Das Kind, dessen Vater krank ist, weint.",
    ),
    (
        lambda: tried("he", does("he", "open", np("the", "window"))),
        "He tries to open the window.",
        "Er versucht, das Fenster zu öffnen.",
    ),
    (
        lambda: statement(
            clause(
                "she",
                verb("motion", "go"),
                "past",
                predicate=where("to", "zu", np("the", "station")),
                tail=infinitive(does("she", "pick~up", np("her", "aunt")), purpose=True),
            )
        ),
        "She went to the station to pick up her aunt.",
        "Sie ging zum Bahnhof, um ihre Tante abzuholen.",
    ),
    # passive, existence
    (
        lambda: statement(
            clause(
                np("the", "letter"),
                verb("accusative", "write"),
                "past",
                passive=True,
                adjuncts=(where("by", "von", np("a", "soldier")),),
            )
        ),
        "The letter was written by a soldier.",
        "Der Brief wurde von einem Soldaten geschrieben.",
    ),
    (
        lambda: statement(clause(np("this", "clock"), verb("accusative", "repair"), "must", passive=True)),
        "This clock must be repaired.",
        "Diese Uhr muss repariert werden.",
    ),
    (
        lambda: statement(
            clause(
                THERE[1],
                EXIST,
                accusative=np("", "lake", plural=True, number="three"),
                adjuncts=(where("in", "in", np("the", "valley")),),
            )
        ),
        "There are three lakes in the valley.",
        "Es gibt im Tal drei Seen.",
    ),
]

QUESTIONS: list[tuple[Callable[[], BothSides], str, str]] = [
    (
        lambda: question(does(np("the", "nurse"), "call", np("the", "doctor"), "past")),
        "Did the nurse call the doctor?",
        "Hat die Krankenschwester den Arzt angerufen?",
    ),
    (
        lambda: question(
            clause(np("the", "waiter"), verb("dative", "help"), dative=GAP[0], front=Adjunct([("who", "WP")], "wem"))
        ),
        "Who does the waiter help?",
        "Wem hilft der Kellner?",
    ),
    (
        lambda: question(clause("they", verb("motion", "go"), "past", front=Adjunct([("where", "WRB")], "wohin"))),
        "Where did they go?",
        "Wohin sind sie gegangen?",
    ),
    (
        lambda: question(does("who", "steal", np("the", "bicycle", "blue"), "past")),
        "Who stole the blue bicycle?",
        "Wer hat das blaue Fahrrad gestohlen?",
    ),
]


@pytest.mark.parametrize(("build", "source", "target"), GOLDEN, ids=[source for _, source, _ in GOLDEN])
def test_known_sentences(build: Callable[[], BothSides], source: str, target: str) -> None:
    made = pair(build())
    assert (made.source, made.target) == (source, target)


@pytest.mark.parametrize(("build", "source", "target"), QUESTIONS, ids=[source for _, source, _ in QUESTIONS])
def test_known_questions(build: Callable[[], BothSides], source: str, target: str) -> None:
    made = pair(build(), "?")
    assert (made.source, made.target) == (source, target)
