"""The events of the reports, and the sentence templates for each."""

from collections.abc import Mapping
from typing import NamedTuple

from l0drop.data.toy.pair import ToyToken

# The default tag of each template word; a template writes word/TAG for another tag.
TAGS = {
    word: tag
    for tag, words in {
        "DT": "a an the this another",
        "PDT": "all",
        "IN": """in on at of with from by for after before that through near over under against behind about
            like""",
        "CC": "and",
        "TO": "to",
        "EX": "there",
        "MD": "will can",
        "PRP": "it they we i",
        "PRP$": "its our my",
        "WDT": "which",
        "WP": "who what",
        "WRB": "when",
        "RB": "not never very now again too late nearby",
        "JJ": """heavy new old many quiet cold wet grey winning good small famous afraid proud full next last first
            busy dry little possible long""",
        "NN": """storm mayor town wind weather morning evening police water street market fountain church river
            bridge road bank search inspector cause fire chief team match goal coach minute stadium crowd bread
            coffee election hall turnout percent concert singer train line driver sky shop way grandmother bakery dog
            bus summer festival ribbon architect length ceremony robbery noise name post office museum jeweler
            pharmacy hotel factory theater library barn candle cable oven lightning cigarette cow tree stone school
            hospital zoo witness night car branch station result nothing anything everybody nobody front song week day
            radio winter home""",
        "NNS": """roofs houses streets people residents firefighters repairs weeks neighbors robbers euros witnesses
            spectators fans votes officials voters visitors passengers hours meters plans readers reporters tourists
            children degrees songs flames""",
        "VB": "forget take be help walk open come believe bring end see find",
        "VBZ": "is has writes reports lies sells expects knows",
        "VBP": "are have live know",
        "VBD": """hit was were swept left began rose blew counted said visited thanked spoke saw won beat lost ended
            scored came sang took cut entered escaped stole voted received went gave destroyed burned rescued
            collected ran waited heard sold happened met stood had""",
        "VBN": """struck damaged done played opened built founded painted seen lived stolen elected led caused
            derailed injured blocked made cleared""",
        "VBG": "leading looking according",
        ",": ",",
        ".": ". ?",
        ":": ":",
        "``": "“",
        "''": "”",
    }.items()
    for word in words.split()
}

Fill = Mapping[str, list[ToyToken]]  # the words for each slot of a template


def _tagged(text: str) -> list[ToyToken | str]:
    """Parse a template into tagged words and slot names."""
    parts: list[ToyToken | str] = []
    for part in text.split():
        word, _, tag = part.partition("/")
        parts.append(part.strip("{}") if part.startswith("{") else (word, tag or TAGS[word.lower()]))
    return parts


class Template:
    """A sentence with slots in braces; its words are tagged once."""

    def __init__(self, text: str) -> None:
        self._parts = _tagged(text)

    def fill(self, slots: Fill) -> list[ToyToken]:
        """Write the sentence, beginning with a capital letter."""
        tokens: list[ToyToken] = []
        for part in self._parts:
            tokens += slots[part] if isinstance(part, str) else [part]
        first = 1 if tokens[0][0] == "“" else 0
        word, tag = tokens[first]
        tokens[first] = (word[0].upper() + word[1:], tag)
        return tokens


class Event(NamedTuple):
    """A kind of event: the kinds of its slots, the sentences of reports, and the summary.

    `facts` has the wordings for each slot. If `rumors` has wordings of witnesses, who state another number, those of
    `facts` are by the police or the officials. Every opening names the town.
    """

    slots: dict[str, str]
    openings: list[Template]
    facts: dict[str, list[Template]]
    rumors: dict[str, list[Template]]
    summary: list[Template]


def _event(slots: str, text: str) -> Event:
    """Read an event: lines of `slot: sentence`, with `slot?` for rumors, `open` for openings and `summary`."""
    kinds = dict(entry.split("=") for entry in slots.split())
    event = Event(kinds, [], {}, {}, [])
    for line in text.strip().splitlines():
        key, _, sentence = line.strip().partition(" ")
        template = Template(sentence)
        if key == "open:":
            event.openings.append(template)
        elif key == "summary:":
            event.summary.append(template)
        elif key.endswith("?:"):
            event.rumors.setdefault(key[:-2], []).append(template)
        else:
            event.facts.setdefault(key[:-1], []).append(template)
    return event


EVENTS = [
    _event(
        "town=town date=date mayor=person houses=count weeks=small",
        """open: A heavy storm hit {town} .
        open: {town} was struck by a heavy storm .
        open: A storm swept over {town} and left many streets under water .
        open: The residents of {town} will not forget this storm .
        date: The storm began on {date} .
        date: On {date} the wind blew many roofs from the houses .
        date: It was {date} when the wind rose .
        houses: According to the police , {houses} houses were damaged .
        houses: The police counted {houses} damaged houses .
        houses: {houses} houses were damaged , the police said .
        houses?: Witnesses spoke of {houses} damaged houses .
        houses?: “ {houses} houses were damaged , ” a witness said .
        houses?: Neighbors said that {houses} houses were damaged .
        mayor: mayor/NNP {mayor} visited the residents .
        mayor: {mayor} , the mayor of the town , thanked the firefighters .
        mayor: “ We will help everybody , ” said mayor {mayor} .
        weeks: The repairs will take {weeks} weeks .
        weeks: It will be {weeks} weeks before all the repairs are done .
        weeks: “ In {weeks} weeks the repairs will be done , ” the mayor said .
        summary: A storm hit {town} on {date} and damaged/VBD {houses} houses .
        summary: mayor/NNP {mayor} expects the repairs to take {weeks} weeks .""",
    ),
    _event(
        "town=town rival=town date=date score=score scorer=person spectators=large",
        """open: {town} won the match against {rival} .
        open: {town} beat {rival} in a good match .
        open: {rival} lost the match against {town} .
        open: The fans of {town} are proud , and the fans of {rival} are not .
        date: The match was played on {date} .
        date: On {date} the stadium was full .
        date: It was {date} when the two/CD teams/NNS met .
        score: The match ended {score} .
        score: After the last minute it was {score} .
        score: “ {score} is a good result , ” the coach said .
        scorer: {scorer} scored the winning goal .
        scorer: The winning goal came from {scorer} .
        scorer: The fans sang the name of {scorer} , who scored the winning goal .
        spectators: According to the police , {spectators} spectators came .
        spectators: The police counted {spectators} spectators in the stadium .
        spectators: {spectators} spectators were in the stadium , the police said .
        spectators?: Witnesses spoke of {spectators} spectators .
        spectators?: “ {spectators} spectators came , ” a witness said .
        spectators?: Neighbors of the stadium said that {spectators} spectators came .
        summary: {town} beat {rival} {score} on {date} .
        summary: {scorer} scored the winning goal in front of {spectators} spectators .""",
    ),
    _event(
        "town=town date=date architect=person length=length visitors=large",
        """open: {town} has a new bridge .
        open: A new bridge was opened in {town} .
        open: The people of {town} can now walk over a new bridge .
        open: The river in {town} has another bridge .
        date: The ceremony was on {date} .
        date: On {date} the mayor cut the ribbon .
        date: It was {date} when the first people went over the bridge .
        architect: The bridge was built by the architect {architect} .
        architect: {architect} , the architect of the bridge , was very proud .
        architect: The plans came from the architect {architect} .
        length: The bridge is {length} meters long .
        length: It has a length of {length} meters .
        length: “ A bridge of {length} meters was not possible before , ” the mayor said .
        visitors: According to the police , {visitors} visitors came .
        visitors: The police counted {visitors} visitors .
        visitors: {visitors} visitors were at the ceremony , the police said .
        visitors?: Witnesses spoke of {visitors} visitors .
        visitors?: “ {visitors} visitors came , ” a witness said .
        visitors?: Neighbors said that {visitors} visitors were there/RB .
        summary: A new bridge by the architect {architect} was opened in {town} on {date} .
        summary: {visitors} visitors came to see the bridge , which is {length} meters long .""",
    ),
    _event(
        "town=town date=date target=target robbers=small amount=large inspector=person",
        """open: There was a robbery in {town} .
        open: The police of {town} are looking for robbers .
        open: A robbery has made the people of {town} afraid .
        open: Everybody in {town} knows about the robbery .
        date: The robbery was on {date} .
        date: On {date} the robbers came with a car/NN .
        date: It was {date} when it happened .
        target: The robbers entered a {target} .
        target: A {target} was robbed/VBN .
        target: They had robbed/VBN a {target} .
        robbers: According to the police , there were {robbers} robbers .
        robbers: The police are looking for {robbers} robbers .
        robbers: The police said that {robbers} robbers escaped .
        robbers?: Witnesses spoke of {robbers} robbers .
        robbers?: “ I saw {robbers} robbers , ” a witness said .
        robbers?: Neighbors said that there were {robbers} robbers .
        amount: The robbers escaped with {amount} euros .
        amount: {amount} euros were stolen .
        amount: “ They took {amount} euros , ” the inspector said .
        inspector: inspector/NNP {inspector} is leading the search .
        inspector: The search is led by inspector {inspector} .
        inspector: “ We will find the robbers , ” said inspector {inspector} .
        summary: {robbers} robbers stole {amount} euros from a {target} in {town} on {date} .
        summary: inspector/NNP {inspector} is leading the search .""",
    ),
    _event(
        "town=town date=date winner=person loser=person votes=large turnout=percent",
        """open: {town} has a new mayor .
        open: There was an election in {town} .
        open: The voters of {town} have elected a new mayor .
        open: The election in {town} is over/RB .
        date: The election was on {date} .
        date: On {date} the town hall was busy .
        date: It was {date} when the people voted .
        winner: {winner} won the election .
        winner: The new mayor is {winner} .
        winner: “ We will help everybody , ” said the winner/NN , {winner} .
        loser: {loser} lost the election .
        loser: {loser} received fewer/JJR votes .
        loser: “ It was not our day , ” said {loser} , who lost .
        votes: According to the officials , the new mayor received {votes} votes .
        votes: The officials counted {votes} votes for the new mayor .
        votes: The new mayor has {votes} votes , the officials said .
        votes?: Witnesses spoke of {votes} votes for the new mayor .
        votes?: “ The new mayor has {votes} votes , ” a witness said .
        votes?: Neighbors said that the new mayor received {votes} votes .
        turnout: The turnout was {turnout} percent .
        turnout: {turnout} percent of the people voted .
        turnout: The officials were proud of a turnout of {turnout} percent .
        summary: {winner} won the election in {town} on {date} with {votes} votes .
        summary: {loser} lost , and the turnout was {turnout} percent .""",
    ),
    _event(
        "town=town date=date building=building rescued=count cause=cause chief=person",
        """open: There was a fire in {town} .
        open: A fire has made the people of {town} afraid .
        open: The firefighters of {town} had a long night .
        open: Flames were seen over {town} .
        date: The fire began on {date} .
        date: On {date} the firefighters were called/VBN .
        date: It was {date} when the first flames were seen .
        building: A {building} burned .
        building: The fire destroyed a {building} .
        building: Nothing is left/VBN of the {building} .
        rescued: According to the police , {rescued} people were rescued/VBN .
        rescued: The police said that the firefighters rescued {rescued} people .
        rescued: {rescued} people were rescued/VBN , the police said .
        rescued?: Witnesses spoke of {rescued} rescued/VBN people .
        rescued?: “ They rescued {rescued} people , ” a witness said .
        rescued?: Neighbors said that {rescued} people were rescued/VBN .
        cause: The fire was caused by {cause} .
        cause: The cause was {cause} , the police said .
        cause: “ It was {cause} , ” the fire chief said .
        chief: Fire chief {chief} led/VBD the firefighters .
        chief: “ My team was very good , ” said fire chief {chief} .
        chief: The fire chief , {chief} , was there/RB all/DT night .
        summary: A fire that was caused by {cause} destroyed a {building} in {town} on {date} .
        summary: The firefighters of {chief} rescued {rescued} people .""",
    ),
    _event(
        "town=town date=date singer=person visitors=large money=large purpose=purpose",
        """open: There was a concert in {town} .
        open: The people of {town} will not forget this concert .
        open: A concert brought/VBD many people to {town} .
        open: The market of {town} was full of songs .
        date: The concert was on {date} .
        date: On {date} the first song began .
        date: It was {date} when the singer came .
        singer: {singer} sang old and new songs .
        singer: The singer was {singer} .
        singer: “ I will come again , ” said {singer} , the singer .
        visitors: According to the police , {visitors} visitors came .
        visitors: The police counted {visitors} visitors .
        visitors: {visitors} visitors heard the concert , the police said .
        visitors?: Witnesses spoke of {visitors} visitors .
        visitors?: “ {visitors} visitors were there/RB , ” a witness said .
        visitors?: Neighbors said that {visitors} visitors came .
        money: The singer collected {money} euros .
        money: The visitors gave {money} euros .
        money: “ We have {money} euros now , ” the mayor said .
        purpose: The money/NN will help to open a {purpose} .
        purpose: The town needs/VBZ the money/NN for a new {purpose} .
        purpose: “ We can build/VB a {purpose} now , ” said the mayor .
        summary: {singer} sang in {town} on {date} for {visitors} visitors .
        summary: The concert brought/VBD {money} euros for a new {purpose} .""",
    ),
    _event(
        "town=town goal=town date=date injured=count driver=person hours=small cause=obstacle",
        """open: A train from {town} to {goal} has derailed .
        open: A train derailed/VBD on the way from {town} to {goal} .
        open: The train from {town} to {goal} did/VBD not come .
        date: It happened on {date} .
        date: On {date} the passengers heard a noise .
        date: It was {date} when the train stopped/VBD .
        injured: According to the police , {injured} passengers were injured .
        injured: The police counted {injured} injured passengers .
        injured: {injured} passengers were injured , the police said .
        injured?: Witnesses spoke of {injured} injured passengers .
        injured?: “ I saw {injured} injured passengers , ” a witness said .
        injured?: Neighbors of the line said that {injured} passengers were injured .
        driver: {driver} , the driver of the train , is at home .
        driver: “ I saw it too late , ” said {driver} , the driver .
        driver: The driver of the train was {driver} .
        hours: The line was blocked for {hours} hours .
        hours: After {hours} hours the line was cleared .
        hours: “ In {hours} hours the line will be open/JJ , ” the police said .
        cause: There was {cause} on the line .
        cause: The train had hit/VBN {cause} .
        cause: The cause was {cause} .
        summary: A train from {town} to {goal} with the driver {driver} hit {cause} and derailed/VBD on {date} .
        summary: {injured} passengers were injured , and the line was blocked for {hours} hours .""",
    ),
]

FILLERS = [
    Template(line.strip())
    for line in """The weather was cold and wet in the morning .
        It was {degrees} degrees in the morning .
        The sky was grey .
        {inhabitants} people live in {town} .
        The town was founded in {year} .
        The old church of the town was painted in {year} .
        “ I have never seen anything like this , ” said {passerby} , who lives/VBZ nearby .
        {passerby} was on the way to the market when it happened .
        The market will open again next week .
        Many tourists come/VBP to {town} in summer .
        A dog ran through the street .
        The bakery sold coffee to the reporters .
        “ My grandmother will not believe it , ” said {passerby} .
        The bus to {elsewhere} came too late .
        In {elsewhere} everybody heard about it on the radio .
        {passerby} sells bread in a small shop behind the church .
        {passerby} , who was there/RB , took photographs/NNS of the crowd .
        In {year} there was a famous festival in {town} .
        Some/DT children waited behind the church .
        “ We were at home and heard the noise , ” {passerby} said .
        The evening was quiet again .
        Our readers know {town} for its old fountain .
        The next festival in {elsewhere} will be in winter .
        Nobody knows what the next week will bring .
        The town hall lies near the river .
        The family/NN of {passerby} has lived in {town} since/IN {year} .
        “ Will it end well/RB ? ” asked/VBD {passerby} .
        The road to {elsewhere} is old and small .
        In the bakery the people spoke of nothing else/RB .
        A bus from {elsewhere} stood on the market .
        {passerby} came from {elsewhere} with a little dog .
        “ Nobody asked/VBD us/PRP , ” said {passerby} and went home/RB .
        The coffee in the town hall was cold .
        It was a dry week before and a wet week after that/DT .""".splitlines()
]
HEADERS = [
    Template(text)
    for text in (
        "The {paper} Gazette/NNP writes :",
        "The {paper} Post/NNP reports :",
        "From the {paper} Herald/NNP :",
        "The {paper} Courier/NNP reports :",
        "From the {paper} Messenger/NNP :",
        "The {paper} Tribune/NNP writes :",
    )
]
CHOICES = {
    "target": "bank; museum; jeweler; post office; pharmacy; hotel; bakery; library; theater",
    "building": "school; hotel; factory; theater; library; barn; museum; hospital; church; zoo",
    "purpose": "school; theater; library; museum; hospital; zoo; bridge; stadium; church; bus station",
    "cause": "a candle; an old cable; an oven; a cigarette; lightning; a radio",
    "obstacle": "a tree; a cow; a stone; an old car; a dog; a branch",
}
