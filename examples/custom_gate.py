"""Write a gate that drops the words you choose, put it into a checkpoint, save the model and load it again.

    python examples/custom_gate.py Helsinki-NLP/opus-mt-en-de out "The price of the house is high." the of is

MODEL is a folder or a name on the Hugging Face hub, OUT the folder to write, then a sentence and the words to drop. A
gate decides for every source token; everything else (the short memory, decoding, saving) works with any gate. This one
is a rule and needs no training, but the decoder has not learned to do without the dropped words: fine-tune the model
(examples/own_training_loop.py) before you judge the outputs.
"""

import argparse

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import l0drop


@l0drop.register_gate("drop-tokens")  # the name under which a saved model finds the class
class DropTokens(l0drop.Gate):
    """Drops the tokens with these ids."""

    def __init__(self, ids: list[int]) -> None:  # arguments are saved with the model: plain JSON values
        super().__init__()
        self.ids = ids

    def forward(self, encodings, mask, input_ids=None, hints=None):
        dropped = torch.isin(input_ids, torch.tensor(self.ids, device=mask.device))
        return l0drop.Gates(mask & ~dropped)  # one gate per source token: 1 keeps, 0 drops; padding must be 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("sentence", metavar="SENTENCE")
    parser.add_argument("words", metavar="WORD", nargs="+")
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    dense = AutoModelForSeq2SeqLM.from_pretrained(args.model)
    ids = sorted({token for word in args.words for token in tokenizer(word, add_special_tokens=False)["input_ids"]})
    model = l0drop.sparsify(dense, l0drop.L0DropConfig(gate="drop-tokens", gate_args={"ids": ids}))
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)

    loaded = l0drop.load(args.out)  # works in any program that has imported the class
    result = loaded.generate([args.sentence])[0]
    print("kept:  ", " ".join(token.text for token in result.kept))
    print("output:", result.text)


if __name__ == "__main__":
    main()
