"""Shorten the memory of a public checkpoint with source text alone: no translations or summaries are needed.

    python examples/public_checkpoint.py Helsinki-NLP/opus-mt-en-de text.en sparse

MODEL is a folder or a name on the Hugging Face hub, TEXT a file with one source text per line, of the kind that you
want to decode later, OUT the folder to write. The dense model decodes the text, and its outputs are the training
targets (sequence-level distillation): the sparse model learns to give the same outputs from fewer encodings. At the end
the script compares both on held-out lines. `l0drop train` with a recipe does the same and adds checkpoints, token-level
distillation and evaluation.
"""

import argparse
import random

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import l0drop

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", metavar="MODEL")
parser.add_argument("text", metavar="TEXT")
parser.add_argument("out", metavar="OUT")
parser.add_argument("--target", type=float, default=0.4, help="the share of encoder outputs to drop")
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--batch", type=int, default=64, help="sentences per step")
parser.add_argument("--lr", type=float, default=1e-4)
args = parser.parse_args()

random.seed(1)
torch.manual_seed(1)
device = "cuda" if torch.cuda.is_available() else "cpu"

# 1. The dense model's outputs are the training targets.
with open(args.text, encoding="utf-8") as file:
    sources = list(dict.fromkeys(line.strip() for line in file if line.strip()))
outputs = [result.text for result in l0drop.load(args.model, device=device).generate(sources)]
pairs = [pair for pair in zip(sources, outputs, strict=True) if pair[1]]
held_out, train = pairs[: len(pairs) // 20], pairs[len(pairs) // 20 :]
print(f"{len(train)} lines to train on, {len(held_out)} held out")

# 2. Fine-tune the same model with a gate.
tokenizer = AutoTokenizer.from_pretrained(args.model)
dense = AutoModelForSeq2SeqLM.from_pretrained(args.model)
model = l0drop.sparsify(dense, l0drop.L0DropConfig(target_sparsity=args.target)).to(device)
# the setpoint rises from 0 to the target in a third of the steps; the rest is for the decoder to adapt
model.schedule = l0drop.SteeredLambda(args.target, ramp=max(300, args.steps // 3))


def batch_of(chosen):
    options = {"padding": True, "truncation": True, "max_length": 256, "return_tensors": "pt"}
    source = tokenizer([source for source, _ in chosen], **options).to(device)
    target = tokenizer(text_target=[output for _, output in chosen], **options).to(device)
    labels = target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)  # the loss must ignore padding
    return {"input_ids": source["input_ids"], "attention_mask": source["attention_mask"], "labels": labels}


optimizer = torch.optim.Adam(model.parameter_groups(lr=args.lr))
model.train()
for step in range(1, args.steps + 1):
    output = model(**batch_of(random.choices(train, k=args.batch)))
    output.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model.steer(output.sparsity)
    if step % 50 == 0:
        print(f"step {step}  loss {output.loss:.3f}  sparsity {output.sparsity:.1%}  λ {model.lambda_:.2f}", flush=True)

model.eval()
model.save_pretrained(args.out)
tokenizer.save_pretrained(args.out)
try:
    model.calibrate(batch_of(held_out[start : start + args.batch]) for start in range(0, len(held_out), args.batch))
    model.save_pretrained(args.out)
except ValueError as refusal:  # too far from the target
    print(f"{args.out} holds the model as trained, not calibrated: {refusal}")

# 3. Compare with the dense model on held-out lines.
results = l0drop.load(args.out, device=device).generate([source for source, _ in held_out])
same = sum(result.text == output for result, (_, output) in zip(results, held_out, strict=True))
dropped = 1 - sum(len(result.kept) for result in results) / sum(result.source_tokens for result in results)
print(f"dropped {dropped:.1%} of the encodings of held-out text")
print(f"{same} of {len(held_out)} held-out outputs are the dense model's, word for word")
