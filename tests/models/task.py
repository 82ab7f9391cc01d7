"""A generated task: repeat a sentence without its fillers. The decoder does not need four tenths of the encodings."""

import random
from collections.abc import Iterator

import torch
import transformers as hf

PAD, BOS, EOS, FIRST_FILLER, FIRST_WORD, VOCABULARY = 0, 1, 2, 3, 8, 32

Batch = dict[str, torch.Tensor]


def small_model() -> hf.MarianMTModel:
    """A model with 2 + 2 layers and width 64, which learns the task in a few hundred steps."""
    torch.manual_seed(0)
    config = hf.MarianConfig(
        vocab_size=VOCABULARY, decoder_vocab_size=VOCABULARY, d_model=64, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, dropout=0.0,
        activation_function="relu", scale_embedding=True, max_position_embeddings=64, pad_token_id=PAD,
        eos_token_id=EOS, bos_token_id=BOS, decoder_start_token_id=BOS, forced_eos_token_id=None,
    )  # fmt: skip
    model = hf.MarianMTModel(config)
    for parameter in model.parameters():
        if parameter.dim() == 2 and parameter.requires_grad:
            torch.nn.init.xavier_uniform_(parameter)
    return model


def sentence(source: random.Random) -> tuple[list[int], list[int]]:
    words = [source.randrange(FIRST_WORD, VOCABULARY) for _ in range(source.randint(4, 7))]
    mixed = []
    for word in words:
        if source.random() < 0.8:
            mixed.append(source.randrange(FIRST_FILLER, FIRST_WORD))
        mixed.append(word)
    return [*mixed, EOS], [*words, EOS]


def batch_of(pairs: list[tuple[list[int], list[int]]]) -> Batch:
    sources, targets = ([torch.tensor(side) for side in sides] for sides in zip(*pairs, strict=True))
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad(sources, batch_first=True, padding_value=PAD)
    mask = pad([torch.ones_like(s) for s in sources], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask, "labels": pad(targets, batch_first=True, padding_value=-100)}


def batches(count: int, seed: int, size: int = 64) -> Iterator[Batch]:
    source = random.Random(seed)
    for _ in range(count):
        yield batch_of([sentence(source) for _ in range(size)])


@torch.no_grad()
def accuracy(model: hf.PreTrainedModel, held_out: list[Batch]) -> float:
    """The share of sentences that greedy decoding gets completely right."""
    model.eval()
    right = total = 0
    for batch in held_out:
        tokens = model.generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=10, num_beams=1
        )[:, 1:]
        for found, wanted in zip(tokens.tolist(), batch["labels"].tolist(), strict=True):
            right += found[: wanted.index(EOS) + 1] == wanted[: wanted.index(EOS) + 1]
            total += 1
    return right / total


def solve(model: hf.PreTrainedModel, steps: int = 400) -> None:
    """Train a model without a gate on the task."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
    model.train()
    for batch in batches(steps, seed=1):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def unbatched(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """The pairs of a batch, without padding."""
    pairs = []
    for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True):
        pairs.append((ids[mask.bool()].tolist(), labels[labels != -100].tolist()))
    return pairs
