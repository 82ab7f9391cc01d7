"""Articles, adjectives, nouns and prepositions in sentences that are known to be correct."""

from collections.abc import Callable

import pytest

from l0drop.data.toy.clauses import BothSides, pair, prepositional, relative, statement
from l0drop.data.toy.lexicon import ACC, BE, FEMININE, GEN, NEUTER
from l0drop.data.toy.phrases import GAP, IT, Name, Nominal
from tests.data.toy.sentences import adjective, clause, does, np, verb, where


def built_house() -> Nominal:
    return relative(np("the", "house"), does("he", "build", GAP[NEUTER], "past"), "accusative")


GOLDEN: list[tuple[Callable[[], BothSides], str, str]] = [
    # articles, adjective endings, cases
    (
        lambda: statement(does(np("the", "teacher"), "buy", np("a", "key", "old"))),
        "The teacher buys an old key.",
        "Der Lehrer kauft einen alten Schlüssel.",
    ),
    (
        lambda: statement(does(np("the", "woman"), "see", np("the", "house", "big"), "perfect")),
        "The woman has seen the big house.",
        "Die Frau hat das große Haus gesehen.",
    ),
    (
        lambda: statement(does("we", "see", np("the", "boy"))),
        "We see the boy.",
        "Wir sehen den Jungen.",
    ),
    (
        lambda: statement(does("she", "buy", np("a", "coat", "expensive", "dark"), "past")),
        "She bought an expensive dark coat.",
        "Sie kaufte einen teuren dunklen Mantel.",
    ),
    (
        lambda: statement(does("she", "drink", np("", "milk", "cold"))),
        "She drinks cold milk.",
        "Sie trinkt kalte Milch.",
    ),
    (
        lambda: statement(
            clause("he", verb("prepositional", "ask+for"), predicate=where("for", "um", np("", "bread", "fresh"), ACC))
        ),
        "He asks for fresh bread.",
        "Er bittet um frisches Brot.",
    ),
    (
        lambda: statement(
            clause(
                "he",
                verb("prepositional", "play+with"),
                predicate=where("with", "mit", np("", "child", "small", plural=True)),
            )
        ),
        "He plays with small children.",
        "Er spielt mit kleinen Kindern.",
    ),
    (
        lambda: statement(
            clause(
                np("", "student", plural=True, number="twenty-three"),
                verb("intransitive", "sleep"),
                adjuncts=(where("in", "in", np("the", "park")),),
            )
        ),
        "Twenty-three students sleep in the park.",
        "Dreiundzwanzig Studenten schlafen im Park.",
    ),
    (
        lambda: statement(does("they", "know", np("all the", "tower", "high", plural=True))),
        "They know all the high towers.",
        "Sie kennen alle hohen Türme.",
    ),
    (
        lambda: statement(does("he", "look+for", np("the", "kitchen key"))),
        "He looks for the kitchen key.",
        "Er sucht den Küchenschlüssel.",
    ),
    # genitives
    (
        lambda: statement(
            clause(np("the", "door", of=np("the", "house")), BE, predicate=adjective("new")),
        ),
        "The door of the house is new.",
        "Die Tür des Hauses ist neu.",
    ),
    (
        lambda: statement(
            clause(np("the", "dog", "old", owner=Name("Lomea", FEMININE)), verb("intransitive", "sleep"))
        ),
        "Lomea's old dog sleeps.",
        "Lomeas alter Hund schläft.",
    ),
    (
        lambda: statement(clause(np("the", "cat", owner=np("my", "mother")), BE, predicate=adjective("hungry"))),
        "My mother's cat is hungry.",
        "Die Katze meiner Mutter ist hungrig.",
    ),
    (
        lambda: statement(
            clause(
                np("the", "guest", plural=True),
                verb("intransitive", "sleep"),
                "past",
                adjuncts=(prepositional("during", "während", GEN, np("the", "concert"), time=True),),
            )
        ),
        "The guests slept during the concert.",
        "Die Gäste schliefen während des Konzerts.",
    ),
    (
        lambda: statement(
            clause(np("the", "station", "old", origin="Lomberg"), BE, "past", predicate=adjective("beautiful"))
        ),
        "The old Lomberg station was beautiful.",
        "Der alte Lomberger Bahnhof war schön.",
    ),
    # verbs that choose a case
    (
        lambda: statement(clause(np("the", "boy"), verb("dative", "help"), dative=np("his", "grandmother"))),
        "The boy helps his grandmother.",
        "Der Junge hilft seiner Großmutter.",
    ),
    (
        lambda: statement(
            clause(
                np("the", "man"), verb("double", "give"), dative=np("the", "child"), accusative=np("a", "apple", "red")
            )
        ),
        "The man gives the child a red apple.",
        "Der Mann gibt dem Kind einen roten Apfel.",
    ),
    (
        lambda: statement(
            clause("he", verb("double", "give"), "past", dative=np("the", "woman"), accusative=IT[0], to=True)
        ),
        "He gave it to the woman.",
        "Er gab ihn der Frau.",
    ),
    # place and direction
    (
        lambda: statement(
            clause(np("the", "dog"), verb("motion", "run"), predicate=where("into", "in", np("the", "house"), ACC))
        ),
        "The dog runs into the house.",
        "Der Hund läuft ins Haus.",
    ),
    (
        lambda: statement(
            clause(
                "she",
                verb("placement", "place"),
                accusative=np("the", "book"),
                predicate=where("on", "auf", np("the", "table"), ACC),
            )
        ),
        "She places the book on the table.",
        "Sie legt das Buch auf den Tisch.",
    ),
    (
        lambda: statement(
            clause(np("the", "book"), verb("position", "lie"), predicate=where("on", "auf", np("the", "table")))
        ),
        "The book lies on the table.",
        "Das Buch liegt auf dem Tisch.",
    ),
    (
        lambda: statement(
            clause("she", verb("position", "live"), predicate=where("in", "in", built_house())),
        ),
        "She lives in the house which he built.",
        "Sie wohnt in dem Haus, das er baute.",
    ),
]


@pytest.mark.parametrize(("build", "source", "target"), GOLDEN, ids=[source for _, source, _ in GOLDEN])
def test_known_sentences(build: Callable[[], BothSides], source: str, target: str) -> None:
    made = pair(build())
    assert (made.source, made.target) == (source, target)
