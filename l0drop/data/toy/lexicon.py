"""The words of both languages and their forms."""

from __future__ import annotations

NOM, ACC, DAT, GEN = range(4)
MASCULINE, FEMININE, NEUTER, PLURAL = range(4)
FIRST, SECOND, THIRD, MANY = range(4)  # agreement: I, you, he/she/it, any plural

# --- the entries ------------------------------------------------------------------------------------------------------
# Nouns by kind: English[/plural] German gender[w = weak masculine] plural. The plural is an ending, `-` for none, with
# " for an umlaut, or = and the whole word; 0 marks a mass noun. Within a kind, frequent nouns come first.
# The kinds: P people, A animals, T things, R texts, F food, W drinks, M machines, V vehicles, K clothes, C containers,
# S furniture, D doors, B buildings, N towns and woods, L built sites, Y waters, O open places, H heights, I ideas,
# J tales, E events, U misfortunes.
_NOUNS = {
    "P": """woman/women Frau f en; man/men Mann m "er; child/children Kind n er; teacher Lehrer m -; friend Freund m e
        mother Mutter f "; father Vater m "; doctor Arzt m "e; boy Junge mw n; girl Mädchen n -; neighbor Nachbar mw n
        sister Schwester f n; brother Bruder m "; student Student mw en; daughter Tochter f "; son Sohn m "e
        farmer Bauer mw n; policeman/policemen Polizist mw en; guest Gast m "e; boss Chef m s; driver Fahrer m -
        grandmother Großmutter f "; grandfather Großvater m "; colleague Kollege mw n; baker Bäcker m -
        judge Richter m -; nurse Krankenschwester f n; chef Koch m "e; king König m e; queen Königin f nen
        aunt Tante f n; uncle Onkel m -; artist Künstler m -; writer Schriftsteller m -; soldier Soldat mw en
        lawyer Anwalt m "e; waiter Kellner m -; mayor Bürgermeister m -; musician Musiker m -; customer Kunde mw n
        gardener Gärtner m -; actress Schauspielerin f nen; singer Sängerin f nen; thief/thieves Dieb m e
        engineer Ingenieur m e; pilot Pilot mw en; captain Kapitän m e; witness Zeuge mw n; visitor Besucher m -
        professor Professor m en; researcher Forscher m -; hunter Jäger m -; fisherman/fishermen Fischer m -
        tailor Schneider m -; secretary Sekretärin f nen; passenger Passagier m e; architect Architekt mw en
        poet Dichter m -; shepherd Hirte mw n; countess Gräfin f nen""",
    "A": """dog Hund m e; cat Katze f n; horse Pferd n e; bird Vogel m "; cow Kuh f "e; mouse/mice Maus f "e
        rabbit Kaninchen n -; fox Fuchs m "e; bear Bär mw en; duck Ente f n; goat Ziege f n; donkey Esel m -
        pig Schwein n e; wolf/wolves Wolf m "e; monkey Affe mw n; lion Löwe mw n; snake Schlange f n""",
    "T": """key Schlüssel m -; picture Bild n er; cup Tasse f n; lamp Lampe f n; knife/knives Messer n -
        glass Glas n "er; ball Ball m "e; gift Geschenk n e; umbrella Regenschirm m e; ring Ring m e; flower Blume f n
        plate Teller m -; bottle Flasche f n; mirror Spiegel m -; ticket Fahrkarte f n; blanket Decke f n
        pen Stift m e; candle Kerze f n; stone Stein m e; hammer Hammer m "; pillow Kissen n -; toy Spielzeug n e
        spoon Löffel m -; fork Gabel f n; pot Topf m "e; bucket Eimer m -; rope Seil n e; ladder Leiter f n
        coin Münze f n; doll Puppe f n; guitar Gitarre f n; violin Geige f n; wallet Brieftasche f n
        necklace Kette f n; carpet Teppich m e; towel Handtuch n "er; broom Besen m -; flag Fahne f n
        telescope Fernrohr n e; tent Zelt n e""",
    "R": """book Buch n "er; letter Brief m e; newspaper Zeitung f en; report Bericht m e; message Nachricht f en
        article Artikel m -; novel Roman m e; contract Vertrag m "e; poem Gedicht n e; map Karte f n; list Liste f n
        diary Tagebuch n "er; recipe Rezept n e; magazine Zeitschrift f en""",
    "F": """apple Apfel m "; bread Brot n 0; cake Kuchen m -; egg Ei n er; soup Suppe f n; cheese Käse m 0
        potato/potatoes Kartoffel f n; salad Salat m e; sausage Wurst f "e; pear Birne f n; meat Fleisch n 0
        tomato/tomatoes Tomate f n; bun Brötchen n -; rice Reis m 0; cherry Kirsche f n; onion Zwiebel f n
        honey Honig m 0; carrot Karotte f n; biscuit Keks m e; nut Nuss f "e""",
    "W": """water Wasser n 0; coffee Kaffee m 0; milk Milch f 0; tea Tee m 0; wine Wein m 0; beer Bier n 0
        juice Saft m 0""",
    "M": """computer Computer m -; radio Radio n s; telephone Telefon n e; clock Uhr f en; machine Maschine f n
        camera Kamera f s; printer Drucker m -; heater Heizung f en; engine Motor m en; fridge Kühlschrank m "e""",
    "V": """car Auto n s; bicycle Fahrrad n "er; bus Bus m =Busse; train Zug m "e; ship Schiff n e; boat Boot n e
        truck Lastwagen m -; airplane Flugzeug n e; tractor Traktor m en""",
    "K": """coat Mantel m "; hat Hut m "e; shoe Schuh m e; shirt Hemd n en; dress Kleid n er; jacket Jacke f n
        boot Stiefel m -; sweater Pullover m -; skirt Rock m "e; glove Handschuh m e; scarf/scarves Schal m s
        belt Gürtel m -; tie Krawatte f n""",
    "C": """box Kiste f n; bag Tasche f n; drawer Schublade f n; cupboard Schrank m "e; suitcase Koffer m -
        basket Korb m "e; backpack Rucksack m "e; chest Truhe f n; envelope Umschlag m "e""",
    "S": """table Tisch m e; chair Stuhl m "e; bed Bett n en; shelf/shelves Regal n e; bench Bank f "e; sofa Sofa n s
        desk Schreibtisch m e""",
    "D": "door Tür f en; window Fenster n -; gate Tor n e",
    "B": """house Haus n "er; school Schule f n; kitchen Küche f n; room Zimmer n -; office Büro n s
        church Kirche f n; hospital Krankenhaus n "er; shop Laden m "; hotel Hotel n s; museum Museum n =Museen
        library Bibliothek f en; theater Theater n -; restaurant Restaurant n s; apartment Wohnung f en
        castle Schloss n "er; factory Fabrik f en; university/universities Universität f en; cinema Kino n s
        bakery Bäckerei f en; cellar Keller m -; stable Stall m "e; prison Gefängnis n =Gefängnisse
        pharmacy Apotheke f n; hall Halle f n; barn Scheune f n""",
    "N": """city Stadt f "e; garden Garten m "; village Dorf n "er; park Park m s; forest Wald m "er; valley Tal n "er
        cave Höhle f n""",
    "L": 'station Bahnhof m "e; bridge Brücke f n; harbor Hafen m "; airport Flughafen m "; fountain Brunnen m -',
    "Y": 'river Fluss m "e; lake See m n; beach Strand m "e; coast Küste f n; border Grenze f n',
    "O": """street Straße f n; island Insel f n; field Feld n er; square Platz m "e; balcony Balkon m s
        farm Bauernhof m "e; stage Bühne f n; roof Dach n "er""",
    "H": """mountain Berg m e; tower Turm m "e; hill Hügel m -""",
    "I": """question Frage f n; idea Idee f n; problem Problem n e; plan Plan m "e; answer Antwort f en
        rule Regel f n; decision Entscheidung f en; mistake Fehler m -; solution Lösung f en; proposal Vorschlag m "e
        method Methode f n; theory/theories Theorie f n""",
    "J": """story Geschichte f n; joke Witz m e; dream Traum m "e; adventure Abenteuer n -; legend Legende f n
        fable Fabel f n""",
    "E": """meeting Sitzung f en; party Feier f n; exam Prüfung f en; concert Konzert n e; dinner Abendessen n -
        wedding Hochzeit f en; election Wahl f en; trial Prozess m e; speech Rede f n; festival Fest n e
        lecture Vorlesung f en; funeral Beerdigung f en""",
    "U": 'journey Reise f n; storm Sturm m "e; flight Flug m "e; war Krieg m e; strike Streik m s',
}

# Compounds: any modifier with any head of its group; each English modifier is followed by its German stem.
_COMPOUNDS = [
    (
        """kitchen Küchen; garden Garten; school Schul; house Haus; hotel Hotel; office Büro; castle Schloss
        church Kirchen; cellar Keller; theater Theater; library Bibliotheks; museum Museums; prison Gefängnis
        factory Fabrik; university Universitäts; hospital Krankenhaus; ship Schiffs; train Zug""",
        "door window key lamp table chair clock bench shelf mirror telephone heater gate roof carpet computer cupboard",
    ),
    (
        """metal Metall; glass Glas; gold Gold; silver Silber; leather Leder; wood Holz; paper Papier; plastic Plastik
        iron Eisen; copper Kupfer""",
        "box ring bag cup table door plate spoon fork bucket chair suitcase key necklace coin ball lamp chest pot",
    ),
    (
        """apple Apfel; potato Kartoffel; cherry Kirsch; tomato Tomaten; cheese Käse; onion Zwiebel; nut Nuss
        carrot Karotten; egg Eier; plum Pflaumen; lemon Zitronen; strawberry Erdbeer; honey Honig; vegetable Gemüse
        pumpkin Kürbis""",
        "cake soup salad bun",
    ),
    ("wine Wein; beer Bier; water Wasser; milk Milch; tea Tee; coffee Kaffee; juice Saft", "glass bottle cup"),
    (
        """winter Winter; summer Sommer; rain Regen; leather Leder; wool Woll; silk Seiden; cotton Baumwoll
        work Arbeits; sport Sport; travel Reise""",
        "coat hat shoe shirt dress jacket boot sweater skirt glove scarf bag",
    ),
    (
        """travel Reise; school Schul; history Geschichts; adventure Abenteuer; love Liebes; sport Sport
        weather Wetter; crime Kriminal; nature Natur; fashion Mode; police Polizei; cat Katzen; horse Pferde
        music Musik""",
        "book report novel magazine story newspaper article poem",
    ),
    ("bus Bus; truck Lastwagen; train Zug; taxi Taxi; tractor Traktor", "driver"),
    ("school Schul; university Universitäts; music Musik; sport Sport; dance Tanz", "teacher"),
    ("hotel Hotel; theater Theater; wedding Hochzeits; summer Sommer", "guest"),
    ("museum Museums; festival Festival; concert Konzert; castle Schloss", "visitor"),
    ("village Dorf; summer Sommer; winter Winter; music Musik; film Film", "festival"),
    ("village Dorf; music Musik; sport Sport; forest Wald", "school"),
    ("river Fluss; village Dorf; railway Eisenbahn; wood Holz; stone Stein", "bridge"),
    ("fishing Fischer; mountain Berg; forest Wald; wine Wein", "village"),
]

# Adjectives: English, German, kinds of nouns that they fit [English comparative, German comparative].
_ADJECTIVES = """old alt PATRMVKCSDBNLOIJ older älter; new neu TRMVKCSDBLIJE newer neuer
        big groß ATFVKCSDBNLOHEY bigger größer; small klein PATFMVKCSDBNLOHY smaller kleiner
        good gut RFWMIJE better besser; young jung PA younger jünger; beautiful schön PATKVBNLOHEY; red rot TVKCSD
        black schwarz ATVKCM; white weiß ATVKCD; important wichtig RIJE; long lang RIJEU longer länger
        short kurz RIJEU shorter kürzer; expensive teuer TRMVKCSW; cheap billig TMVKCSW cheaper billiger
        friendly freundlich PA friendlier freundlicher; tired müde PA; happy glücklich P happier glücklicher
        bad schlecht RFWIJE; green grün TVKCSD; blue blau TVKCD; heavy schwer TMCS heavier schwerer
        famous berühmt PRBNLH; strange seltsam PRIJEA; interesting interessant PRIJEBN; clever klug PA cleverer klüger
        rich reich P richer reicher; poor arm P poorer ärmer; brown braun AKCT; yellow gelb TKCV
        cold kalt FWYH colder kälter; hot heiß FW hotter heißer; fresh frisch F fresher frischer; quiet ruhig BNOPY
        dark dunkel BNKC darker dunkler; clean sauber TKBCS; dirty schmutzig TKVCS; broken kaputt TMVCS
        strong stark PA stronger stärker; sick krank PA; sad traurig PRIJ sadder trauriger; angry wütend PA
        difficult schwierig IJE; easy einfach IJE easier einfacher; boring langweilig PRIJE
        funny lustig PRIJ funnier lustiger; lazy faul PA lazier fauler; hungry hungrig PA; nervous nervös PA
        polite höflich P; patient geduldig P; curious neugierig PA; brave mutig PA braver mutiger; empty leer BC
        modern modern MVBSKIJ; useful nützlich TRMIJ; high hoch H higher höher; sweet süß F sweeter süßer
        sour sauer F; delicious lecker F; dangerous gefährlich AMVOYU; deep tief Y deeper tiefer; round rund CS
        loud laut MVE louder lauter; comfortable bequem SKV; wet nass KST; unfriendly unfreundlich P
        unhappy unglücklich P; impolite unhöflich P; impatient ungeduldig P; unimportant unwichtig RIJE
        useless nutzlos TMIJ; uncomfortable unbequem SKV; wonderful wunderbar RFEBNIJ; terrible schrecklich RFEIJU"""

# Verbs by frame: English, German, kinds of subject, kinds of object or place. English is the base and, where
# irregular, past and participle; ~ binds a particle, + a preposition; = marks a state, ^ an action for somebody, - a
# receiver that needs "to". German is the infinitive and, where strong, the third person, past and participle; |
# marks a separable prefix, * the auxiliary "sein", + gives the preposition and case of the object.
_VERBS = {
    "accusative": """see saw seen=, sehen sieht sah gesehen, P, PATVBLHNO; buy bought bought^, kaufen, P, TRFKVMCS
        find found found, finden findet fand gefunden, P, TRKCA
        know knew known=, kennen kennt kannte gekannt, P, PBRIN; need=, brauchen, P, TMKVCI
        have had had=, haben hat hatte gehabt, P, TRKVAMCI; love=, lieben, P, PABNLEY
        like=, mögen mag mochte gemocht, P, PAFKRI; look+for^, suchen, P, PATRKC; visit, besuchen, P, PBNLO
        sell sold sold, verkaufen, P, TFKVMSA; write wrote written^, schreiben schreibt schrieb geschrieben, P, R
        open, öffnen, P, DC; eat ate eaten, essen isst aß gegessen, PA, F
        drink drank drunk, trinken trinkt trank getrunken, P, W; hear heard heard=, hören, P, PAJ
        meet met met, treffen trifft traf getroffen, P, P; lose lost lost, verlieren verliert verlor verloren, P, TRK
        understand understood understood=, verstehen versteht verstand verstanden, P, PRI
        forget forgot forgotten=, vergessen vergisst vergaß vergessen, P, TRIK; pick~up, ab|holen, P, PTRV
        look+at, an|sehen sieht sah gesehen, P, PATRVB; call, an|rufen ruft rief gerufen, P, P
        invite, ein|laden lädt lud geladen, P, P; close, schließen schließt schloss geschlossen, P, DC
        repair^, reparieren, P, MV; clean^, putzen, P, DSV; build built built^, bauen, P, BL
        paint^, streichen streicht strich gestrichen, P, D; wear wore worn, tragen trägt trug getragen, P, K
        wash^, waschen wäscht wusch gewaschen, P, KV; use, benutzen, P, TMV; watch, beobachten, P, PA
        describe, beschreiben beschreibt beschrieb beschrieben, P, PBNIE
        discuss, besprechen bespricht besprach besprochen, P, IR; pay+for paid paid, bezahlen, P, TFWK
        order^, bestellen, P, FWR; prepare^, vor|bereiten, P, E
        steal stole stolen^, stehlen stiehlt stahl gestohlen, P, TRKVA; hide hid hidden, verstecken, P, TRC
        throw~away threw thrown, weg|werfen wirft warf geworfen, P, TRKF; turn~on, ein|schalten, P, M
        turn~off, aus|schalten, P, M; lock, ab|schließen schließt schloss geschlossen, P, DV
        bring~back brought brought, zurück|bringen bringt brachte gebracht, P, TRVA
        take~along took taken, mit|nehmen nimmt nahm genommen, P, TRKA; accept, an|nehmen nimmt nahm genommen, P, I
        reject, ab|lehnen, P, I; translate^, übersetzen übersetzt übersetzte übersetzt, P, R
        sign, unterschreiben unterschreibt unterschrieb unterschrieben, P, R; print^, drucken, P, R
        draw drew drawn^, zeichnen, P, ABNLHY; feed fed fed, füttern, P, A
        catch caught caught, fangen fängt fing gefangen, PA, A; praise, loben, P, P; warn, warnen, P, P
        hug, umarmen umarmt umarmte umarmt, P, P; kiss, küssen, P, P; save, retten, P, PA
        leave left left, verlassen verlässt verließ verlassen, P, BNP; enter, betreten betritt betrat betreten, P, BN
        own=, besitzen besitzt besaß besessen, P, BVA; hate=, hassen, P, PAEIU; tidy~up, auf|räumen, P, B
        try~on, an|probieren, P, K; take~off took taken, aus|ziehen zieht zog gezogen, P, K; collect, sammeln, P, TR
        rent^, mieten, P, BV; destroy, zerstören, P, MVBL""",
    "dative": """help, helfen hilft half geholfen, P, P; thank, danken, P, P; answer, antworten, P, P
        follow, folgen*, PA, PA; listen+to, zu|hören, P, P; trust=, vertrauen, P, P; believe=, glauben, P, P
        congratulate, gratulieren, P, P; forgive forgave forgiven=, verzeihen verzeiht verzieh verziehen, P, P
        obey=, gehorchen, P, P; belong+to=, gehören gehört gehörte gehört, TRVKCA, P""",
    "double": """give gave given, geben gibt gab gegeben, P, TRKFA; show, zeigen, P, TRVBNM
        send sent sent, schicken, P, RTK; bring brought brought, bringen bringt brachte gebracht, P, TFWR
        tell told told, erzählen, P, J; lend lent lent, leihen leiht lieh geliehen, P, TVRK
        offer, an|bieten bietet bot geboten, P, FW; promise=, versprechen verspricht versprach versprochen, P, TRK
        explain-, erklären, P, IRJ; recommend-, empfehlen empfiehlt empfahl empfohlen, P, RBFW
        describe-, beschreiben beschreibt beschrieb beschrieben, P, BIE
        return-, zurück|geben gibt gab gegeben, P, TRKV""",
    "prepositional": """wait+for, warten+auf acc, P, PVA
        talk+about, sprechen+über acc spricht sprach gesprochen, P, PIERU
        think+about thought thought, nach|denken+über acc denkt dachte gedacht, P, IE
        play+with, spielen+mit dat, PA, PA; laugh+about, lachen+über acc, P, PIJ
        dream+of=, träumen+von dat, P, PBNEVY; ask+for, bitten+um acc bittet bat gebeten, P, FWTR
        work+on, arbeiten+an dat, P, RI; take~part+in took taken, teil|nehmen+an dat nimmt nahm genommen, P, E
        look+after, auf|passen+auf acc, P, PA; believe+in=, glauben+an acc, P, I
        complain+about, klagen+über acc, P, FIEPU; report+on, berichten+über acc, P, EU
        fight+against fought fought, kämpfen+gegen acc, P, PI; vote+for, stimmen+für acc, P, PI
        dance+with, tanzen+mit dat, P, P""",
    "intransitive": """sleep slept slept, schlafen schläft schlief geschlafen, PA, -; work, arbeiten, P, -
        laugh, lachen, P, -; play, spielen, PA, -; arrive, an|kommen* kommt kam gekommen, P, -; cry, weinen, P, -
        get~up got gotten, auf|stehen* steht stand gestanden, P, -; sing sang sung, singen singt sang gesungen, P, -
        fall~asleep fell fallen, ein|schlafen* schläft schlief geschlafen, PA, -; smile, lächeln, P, -
        dance, tanzen, P, -; wake~up woke woken, auf|wachen* wacht wachte gewacht, PA, -
        disappear, verschwinden* verschwindet verschwand verschwunden, PA, -; smoke, rauchen, P, -""",
    "motion": """go went gone, gehen* geht ging gegangen, P, BNLYO
        come came come, kommen* kommt kam gekommen, P, BNLYO; run ran run, laufen* läuft lief gelaufen, PA, BNLYH
        travel, reisen*, P, Y; return, zurück|kehren*, P, BNYLO; fly flew flown, fliegen* fliegt flog geflogen, P, Y
        hurry, eilen*, P, BLN; march, marschieren*, P, LYNH; ride rode ridden, reiten* reitet ritt geritten, P, NYH""",
    "position": """live=, wohnen, P, BNOY; stand stood stood=, stehen steht stand gestanden, P, BNLYO
        sit sat sat, sitzen sitzt saß gesessen, PA, SNO; lie lay lain, liegen liegt lag gelegen, TRK, SC
        wait, warten, P, BNLYO; stay=, bleiben* bleibt blieb geblieben, PA, BNYO""",
    "placement": """place, legen, P, TRK; throw threw thrown, werfen wirft warf geworfen, P, TRK; pack, packen, P, TRK
        carry, tragen trägt trug getragen, P, TCS""",
    "clausal": """say said said, sagen, P, -; know knew known=, wissen weiß wusste gewusst, P, -
        think thought thought=, denken denkt dachte gedacht, P, -; believe=, glauben, P, -; hope=, hoffen, P, -
        hear heard heard=, hören, P, -; notice=, bemerken, P, -; claim=, behaupten, P, -
        write wrote written, schreiben schreibt schrieb geschrieben, P, -; fear=, fürchten, P, -
        explain, erklären, P, -; report, berichten, P, -""",
    "control": """try, versuchen, P, -; forget forgot forgotten=, vergessen vergisst vergaß vergessen, P, -
        begin began begun, beginnen beginnt begann begonnen, P, -; hope=, hoffen, P, -
        decide, beschließen beschließt beschloss beschlossen, P, -
        promise=, versprechen verspricht versprach versprochen, P, -; plan, planen, P, -""",
}


# --- their forms ------------------------------------------------------------------------------------------------------


def _vowel_groups(word: str) -> int:
    """Count the syllables of a word, roughly; endings depend on it in both languages."""
    lower = word.lower()
    return sum(c in "aeiouyäöü" and (i == 0 or lower[i - 1] not in "aeiouyäöü") for i, c in enumerate(lower))


def _umlaut(word: str) -> str:
    at = max(word.lower().rfind(vowel) for vowel in "aou")
    if word[at - 1 : at + 1].lower() == "au":
        at -= 1
    return word[:at] + word[at].translate(str.maketrans("aouAOU", "äöüÄÖÜ")) + word[at + 1 :]


def _with_s(word: str) -> str:
    """Add the -s of English plurals and third persons."""
    if word == "have":
        return "has"
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeou":
        return word[:-1] + "ies"
    return word + ("es" if word == "go" else "s")


class Noun:
    """A noun in both languages; `german` holds nominative to genitive, singular then plural."""

    __slots__ = ("english", "gender", "german", "kind", "mass")

    def __init__(self, kind: str, singular: str, plural: str, german: tuple[str, ...], gender: int, mass: bool) -> None:
        self.kind, self.gender, self.german, self.mass = kind, gender, german, mass
        modifier = [(word, "NN") for word in singular.split()[:-1]]
        self.english = ([*modifier, (singular.split()[-1], "NN")], [*modifier, (plural, "NNS")])

    def compound(self, modifier: str, stem: str) -> Noun:
        """Put a modifier in front: door key, Türschlüssel."""
        forms = tuple(stem + form.lower() for form in self.german)
        return Noun(
            self.kind, f"{modifier} {self.english[0][0][0]}", self.english[1][0][0], forms, self.gender, self.mass
        )


def _noun(kind: str, entry: str) -> Noun:
    english, german, gender, plural = entry.split()
    singular, _, many = english.partition("/")
    if plural.startswith("="):
        plural_form = plural[1:]
    else:
        ending = plural.strip('"-0')
        plural_form = (_umlaut(german) if '"' in plural else german) + ending
    forms: tuple[str, ...] = (german,) * 4
    if gender == "mw":
        forms = (german, plural_form, plural_form, plural_form)
    elif gender != "f":
        sibilant = german.endswith(("s", "ß", "z", "sch"))
        short = _vowel_groups(german) == 1 and german[-1] not in "aeiouw" and not plural.endswith("s")
        genitive = german + "s" if sibilant and plural_form == f"{german}se" else german  # Busses, Gefängnisses
        forms = (german, german, german, genitive + ("es" if sibilant or short else "s"))
    dative_plural = plural_form if plural_form[-1] in "ns" else plural_form + "n"
    forms += (plural_form, plural_form, dative_plural, plural_form)
    return Noun(kind, singular, many or _with_s(singular), forms, "mfn".index(gender[0]), plural == "0")


class Adjective:
    """An adjective: its English token, its German form and stem, and its comparative if it has one."""

    __slots__ = ("comparative", "german", "kinds", "stem", "token")

    def __init__(self, english: str, german: str, kinds: str, *comparative: str) -> None:
        self.token, self.german, self.kinds, self.comparative = (english, "JJ"), german, kinds, comparative
        self.stem = {"teuer": "teur", "dunkel": "dunkl", "sauer": "saur", "hoch": "hoh"}.get(german, german.rstrip("e"))


_PARTICLE_TAGS = {"asleep": "JJ", "part": "NN", "back": "RB", "away": "RB"}


class Verb:
    """A verb in both languages, with all forms that the grammar uses."""

    __slots__ = (
        "auxiliary", "benefits", "english", "english_preposition", "german_preposition", "infinitive", "light",
        "needs_to", "object_case", "objects", "participle", "particle", "past", "prefix", "preposition", "present",
        "stative", "subjects", "zu_infinitive",
    )  # fmt: skip

    def __init__(self, english: str, german: str, subjects: str, objects: str) -> None:
        self.subjects, self.objects = subjects, objects.strip("-")
        flags = english[len(english.rstrip("=^-")) :]
        self.stative, self.benefits, self.needs_to = "=" in flags, "^" in flags, "-" in flags
        self.light = german.startswith("haben")
        head, *irregular = english.rstrip("=^-").split()
        head, _, preposition = head.partition("+")
        base, _, particle = head.partition("~")
        self.particle = [(particle, _PARTICLE_TAGS.get(particle, "RP"))] if particle else []
        self.english = english_forms(base, *irregular)
        self._set_german(german.split())
        self.english_preposition = preposition
        binds = preposition and not self.german_preposition  # otherwise the German object has a preposition too
        self.preposition = [(preposition, "TO" if preposition == "to" else "IN")] if binds else []

    def _set_german(self, parts: list[str]) -> None:
        infinitive, _, preposition = parts[0].partition("+")
        self.german_preposition, self.object_case = preposition, ACC
        if preposition:
            self.object_case = DAT if parts.pop(1) == "dat" else ACC
        self.auxiliary = "sein" if infinitive.endswith("*") else "haben"
        prefix, _, base = infinitive.rstrip("*").rpartition("|")
        self.prefix, self.infinitive, self.zu_infinitive = prefix, prefix + base, f"zu {base}"
        if prefix:
            self.zu_infinitive = f"{prefix}zu{base}"
        stem = base.removesuffix("n").removesuffix("e")
        link = "e" if stem.endswith(("t", "d", "chn", "ffn")) else ""
        unmarked = base.endswith("ieren") or base.startswith(("be", "ver", "er", "zer", "ent", "ge"))
        weak = [f"{stem}{link}t", f"{stem}{link}te", f"{'' if unmarked else 'ge'}{stem}{link}t"]
        third, past, participle = parts[1:] or weak
        self.participle = prefix + participle
        first = f"{stem[:-2]}le" if base.endswith("eln") else f"{stem}e"
        if not third.endswith("t"):  # mag, weiß
            first, second = third, third + ("t" if third.endswith("ß") else "st")
        elif stem.endswith("t") and not third.endswith("et"):  # betritt
            second = third + "st"
        else:
            second = third if third[:-1].endswith(("s", "ß", "z")) else third[:-1] + "st"
        self.present = (first, second, third, base)
        # Only "haben" and "sein" need a second person here; other verbs use the perfect for the past of "du".
        self.past = (past, past + "st", past, past + ("n" if past.endswith("e") else "en"))


def english_forms(base: str, past: str = "", participle: str = "") -> dict[str, str]:
    vowels = "aeiou"
    double = (
        (_vowel_groups(base) == 1 or base in ("begin", "forget"))
        and len(base) > 2
        and base[-1] not in vowels + "wxy"
        and base[-2] in vowels
    )
    stem = base + base[-1] if double and base[-3] not in vowels else base
    regular = f"{base[:-1]}ied" if base.endswith("y") and base[-2] not in vowels else stem.removesuffix("e") + "ed"
    ing = (
        f"{base[:-2]}ying"
        if base.endswith("ie")
        else (stem[:-1] if stem.endswith("e") and base != "see" else stem) + "ing"
    )
    return {"VB": base, "VBZ": _with_s(base), "VBD": past or regular, "VBN": participle or regular, "VBG": ing}


def listed(text: str) -> list[str]:
    """Split text at spaces."""
    return text.split()


def _entries(table: str) -> list[str]:
    return [entry.strip() for line in table.splitlines() for entry in line.split(";") if entry.strip()]


NOUNS = {
    noun.english[0][0][0]: noun for kind, table in _NOUNS.items() for noun in (_noun(kind, e) for e in _entries(table))
}
ADJECTIVES = {entry.split()[0]: Adjective(*entry.split()) for entry in _entries(_ADJECTIVES)}
VERBS = {
    frame: {entry.split(",")[0].split()[0].rstrip("=^-"): Verb(*entry.split(", ")) for entry in _entries(table)}
    for frame, table in _VERBS.items()
}
NOUNS |= {
    f"{modifier} {head}": NOUNS[head].compound(modifier, stem)
    for modifiers, heads in _COMPOUNDS
    for modifier, stem in map(str.split, _entries(modifiers))
    for head in heads.split()
}

BE = Verb("be was been=", "sein* ist war gewesen", "", "")
BE.present, BE.light, BE.zu_infinitive = ("bin", "bist", "ist", "sind"), True, "zu sein"
EXIST = Verb("be was been=", "geben gibt gab gegeben", "", "")  # there is, es gibt
EXIST.present, EXIST.past, EXIST.light = ("gibt",) * 4, ("gab",) * 4, True
RAIN, SNOW = Verb("rain", "regnen regnet regnete geregnet", "", ""), Verb("snow", "schneien", "", "")

# --- numbers ----------------------------------------------------------------------------------------------------------

_UNITS = """two zwei three drei four vier five fünf six sechs seven sieben eight acht nine neun ten zehn eleven elf
    twelve zwölf"""
_TENS = """twenty zwanzig thirty dreißig forty vierzig fifty fünfzig sixty sechzig seventy siebzig eighty achtzig
    ninety neunzig"""


def _german_numbers() -> dict[str, str]:
    """Pair the English number words from two to twelve and twenty to ninety-nine with the German ones."""
    units, tens = (dict(zip(words[::2], words[1::2], strict=True)) for words in (_UNITS.split(), _TENS.split()))
    digits = {"one": "ein"} | dict(list(units.items())[:8])
    return units | tens | {f"{ten}-{one}": f"{ein}und{zig}" for ten, zig in tens.items() for one, ein in digits.items()}


GERMAN_NUMBERS = _german_numbers()
