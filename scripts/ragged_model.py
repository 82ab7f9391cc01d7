"""A large untrained model and toy documents of many lengths, to time with `l0drop bench decode`.

    python scripts/ragged_model.py --output runs/ragged
    l0drop bench decode runs/ragged/model --input runs/ragged/documents.txt --sentences 24 --batch 12

The model is a Transformer base with random weights and a gate that drops 70% of the encodings at random; the
documents have 1, 3, 6 and 10 reports in turn, about 40 to 700 words.
"""

import argparse
from pathlib import Path

from l0drop import L0DropConfig, sparsify
from l0drop.bench.workloads import peaked_base
from l0drop.data.tokenizer import train_tokenizer
from l0drop.data.toy.documents import documents
from l0drop.data.whole import write_whole

REPORTS = (1, 3, 6, 10)
DROPPED = 0.7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/ragged"))
    parser.add_argument("--documents", type=int, default=64)
    arguments = parser.parse_args()
    streams = [documents(arguments.documents, seed=1, reports=reports) for reports in REPORTS]
    lines = [pair.source for turn in zip(*streams, strict=True) for pair in turn][: arguments.documents]
    write_whole(arguments.output / "documents.txt", "".join(f"{line}\n" for line in lines))
    gate = {"rate": DROPPED, "seed": 0}
    model = sparsify(peaked_base(), L0DropConfig(gating="zero", gate="random", gate_args=gate)).eval()
    texts = (pair.source for pair in documents(4000, seed=2))
    tokenizer = train_tokenizer(texts, vocab_size=4000).source
    model.save_pretrained(arguments.output / "model")
    tokenizer.save_pretrained(arguments.output / "model")
    print(f"written: {arguments.output / 'model'}, {arguments.output / 'documents.txt'}")


if __name__ == "__main__":
    main()
