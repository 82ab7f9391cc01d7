"""Fine-tune a checkpoint in your own training loop until it drops 40% of its encoder outputs.

The script shows every call that a loop needs: `sparsify`, `parameter_groups`, `steer`, `calibrate`, and how to save
model and tokenizer into a folder that `l0drop.load` opens.

    python examples/own_training_loop.py Helsinki-NLP/opus-mt-en-de pairs.tsv sparse

MODEL is a folder or a name on the Hugging Face hub, PAIRS a file with one pair per line (source, tab, target), OUT the
folder to write. Train long enough: with too few steps the model does not reach its target, and `calibrate` refuses.
"""

import argparse
import itertools
import random
from collections.abc import Iterator

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import l0drop

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", metavar="MODEL")
parser.add_argument("pairs", metavar="PAIRS")
parser.add_argument("out", metavar="OUT")
parser.add_argument("--target", type=float, default=0.4, help="the share of encoder outputs to drop")
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--batch", type=int, default=64, help="sentences per step")
parser.add_argument("--lr", type=float, default=1e-4)
args = parser.parse_args()

random.seed(1)
torch.manual_seed(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
tokenizer = AutoTokenizer.from_pretrained(args.model)
dense = AutoModelForSeq2SeqLM.from_pretrained(args.model)
model = l0drop.sparsify(dense, l0drop.L0DropConfig(target_sparsity=args.target)).to(device)
# the setpoint rises from 0 to the target in a third of the steps; the rest is for the decoder to adapt
model.schedule = l0drop.SteeredLambda(args.target, ramp=max(300, args.steps // 3))


def batch_of(pairs: list[list[str]]) -> dict[str, torch.Tensor]:
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    options = {"padding": True, "truncation": True, "max_length": 256, "return_tensors": "pt"}
    source, target = tokenizer(sources, **options), tokenizer(text_target=targets, **options)
    labels = target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)  # the loss must ignore padding
    batch = {"input_ids": source["input_ids"], "attention_mask": source["attention_mask"], "labels": labels}
    return {name: tensor.to(device) for name, tensor in batch.items()}


def batches(pairs: list[list[str]]) -> Iterator[dict[str, torch.Tensor]]:
    for start in range(0, len(pairs), args.batch):
        yield batch_of(pairs[start : start + args.batch])


def epochs(pairs: list[list[str]]) -> Iterator[dict[str, torch.Tensor]]:
    while True:
        random.shuffle(pairs)
        yield from batches(pairs)


with open(args.pairs, encoding="utf-8") as file:
    pairs = [line.rstrip("\n").split("\t") for line in file]
held_out, train = pairs[: len(pairs) // 20], pairs[len(pairs) // 20 :]

optimizer = torch.optim.Adam(model.parameter_groups(lr=args.lr))  # the gate learns 30 times faster than the model
model.train()
for step, batch in enumerate(itertools.islice(epochs(train), args.steps), start=1):
    output = model(**batch)  # output.loss is the cross-entropy + λ · penalty
    output.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model.steer(output.sparsity)  # moves λ towards the target
    if step % 50 == 0:
        print(f"step {step}  loss {output.loss:.3f}  sparsity {output.sparsity:.1%}  λ {model.lambda_:.2f}", flush=True)

model.eval()
model.save_pretrained(args.out)  # first, so that nothing is lost if the calibration refuses
tokenizer.save_pretrained(args.out)
calibration = model.calibrate(batches(held_out))  # a small correction, on text that training has not seen
print(f"sparsity on held-out text: {calibration.before:.1%} after training, {calibration.after:.1%} calibrated")
model.save_pretrained(args.out)

result = l0drop.load(args.out).generate([held_out[0][0]])[0]
print("source:", held_out[0][0])
print("kept:  ", " ".join(token.text for token in result.kept))
print("output:", result.text)
