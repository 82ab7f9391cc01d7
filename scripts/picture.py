"""Draw the picture at the top of the README: sentences through the demo's translation model.

python scripts/picture.py runs/demo/translation/sparse docs/sentences.svg
"""

import sys
from pathlib import Path

import l0drop
from l0drop.data.whole import write_whole
from l0drop.decoding.text import TextModel
from l0drop.report.picture import MarkedWord, PicturedSentence, sentences_svg

SENTENCES = ("In the morning the man thanked her in their big city.",)
"""In the vocabulary of the demo's grammar. The model drops about as much of it as of the test set."""


def example(model: TextModel, sentence: str) -> PicturedSentence:
    """The sentence with its dropped pieces, and the model's outputs on the dense and on the short memory."""
    explained = model.explain(sentence)
    pieces: list[MarkedWord] = []
    end = 0
    for index, token in enumerate(explained.source):
        if token.start is None or token.end is None or token.end <= end:
            continue  # EOS, or a piece without characters
        start = max(token.start, end)
        text = sentence[start : token.end]
        pieces.append((text.strip(), index not in explained.kept, sentence[end:start].isspace() or text[0].isspace()))
        end = token.end
    (short,), (dense,) = model.generate([sentence]), model.generate([sentence], dense=True)
    count = len(explained.source)
    return PicturedSentence(
        pieces,
        {
            f"output on the dense memory, {count} encodings": dense.text,
            f"output on the short memory, {len(explained.kept)} encodings": short.text,
        },
        "source (toy text of the demo), dropped encodings struck out",
    )


def main() -> None:
    model = l0drop.load(sys.argv[1])
    write_whole(Path(sys.argv[2]), sentences_svg([example(model, sentence) for sentence in SENTENCES]))


if __name__ == "__main__":
    main()
