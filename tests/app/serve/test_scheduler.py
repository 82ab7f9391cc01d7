"""Batches within their budget, and a queue that is not read from end to end for each of them."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from l0drop.app.serve.models import Served, ServedSpeech
from l0drop.app.serve.scheduler import BEAMS, FairQueue, Item, ItemBatch, OutputBounds
from l0drop.decoding.sources import BATCH_TOKENS, GPU_BATCH_TOKENS, MIN_CPU_TOKENS
from l0drop.decoding.speech import BATCH_CLIPS, SpeechModel
from l0drop.decoding.text import TextModel
from tests.models.whispers import tone


class Lengths:
    """A model whose sources are their lengths. It counts the questions."""

    name = "lengths"

    def __init__(self, batch_tokens: int = BATCH_TOKENS, least_tokens: int = 1) -> None:
        self.batch_tokens, self.least_tokens, self.asked = batch_tokens, least_tokens, Counter[str]()

    def kind(self, source: int) -> None:
        self.asked["kind"] += 1

    def length(self, source: int) -> int:
        self.asked["length"] += 1
        return source

    def expected_rows(self, source: int) -> int:
        self.asked["rows"] += 1
        return source


async def _arrived(served: Any, lengths: list[int], clients: int = 1, **settings: Any) -> list[Item]:
    items = []
    for number, length in enumerate(lengths):
        item = Item(served, length, {}, f"client {number % clients}", 60.0, **settings)
        item.arrive("search", 1e12)  # in the future: nothing has waited for long
        items.append(item)
    return items


def arrived(*arguments: Any, **settings: Any) -> list[Item]:
    return asyncio.run(_arrived(*arguments, **settings))


def taken(queue: FairQueue) -> list[list[Item]]:
    """All batches of a queue."""
    found = []
    while queue.count:
        found.append(queue.take(ItemBatch))
    return found


@pytest.mark.parametrize("alone", [False, True])
def test_every_item_is_looked_at_once(monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    served, tried, real = Lengths(), Counter[str](), ItemBatch.add

    def counted(batch: ItemBatch, item: Item) -> bool:
        tried["add"] += 1
        return real(batch, item)

    monkeypatch.setattr(ItemBatch, "add", counted)
    queue = FairQueue()
    for item in arrived(served, [64] * 2048, clients=7, alone=alone):
        queue.put(item)
    batches = taken(queue)
    assert {len(batch) for batch in batches} == ({1} if alone else {BATCH_TOKENS // 64})
    assert set(served.asked.values()) == {2048}
    assert tried["add"] <= 2048, "a full batch ends the search"


def test_clients_share_a_batch_and_keep_their_order() -> None:
    queue, items = FairQueue(), arrived(Lengths(16 * 10), [16, 500] * 20, clients=4)
    for item in items:
        queue.put(item)
    first = queue.take(ItemBatch)
    assert [item.source for item in first] == [16] * 10
    assert Counter(item.client for item in first) == {"client 0": 5, "client 2": 5}
    rest = [item for batch in taken(queue) for item in batch]
    for client in {item.client for item in items}:
        mine = [item for item in (*first, *rest) if item.client == client]
        assert mine == [item for item in items if item.client == client]
    assert queue.count == 0


@pytest.mark.parametrize("least", [1, MIN_CPU_TOKENS])
@pytest.mark.parametrize(
    ("beams", "least_new", "most_new"), [(1, 0, 100), (4, 0, 100), (16, 0, 100), (16, 90, 100), (4, 512, 1024)]
)
def test_rows_and_output_tokens_have_a_budget(least: int, beams: int, least_new: int, most_new: int) -> None:
    served = Lengths(least_tokens=least)
    items = arrived(served, [20] * 600, bounds=OutputBounds(beams, least_new, most_new))
    new = max(least, min(most_new, max(least_new, 20)))
    batch = ItemBatch(items[0])
    for item in items[1:]:
        if batch.is_full:
            break
        assert batch.add(item)
    assert len(batch.items) == min(BATCH_TOKENS // max(least, 20), BEAMS * BATCH_TOKENS // (beams * new))
    assert not batch.add(items[-1])


def test_a_batch_has_the_size_that_its_model_decodes_together(
    sparse: TextModel, whisper: SpeechModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, the engine refills slots from a batch, so it gets all that waits."""

    def sizes(served: Any, source: Any, count: int) -> list[int]:
        async def made() -> list[Item]:
            items = [Item(served, source, {}, "client", 60.0, bounds=OutputBounds(1, 0, 20)) for _ in range(count)]
            for item in items:
                item.arrive("search", 1e12)
            return items

        queue = FairQueue()
        for item in asyncio.run(made()):
            queue.put(item)
        return [len(batch) for batch in taken(queue)]

    (text,) = sparse.encode(["the dog sees a cat ."])
    assert sizes(Served("sparse", sparse), text, 2048)[0] == BATCH_TOKENS // MIN_CPU_TOKENS
    monkeypatch.setattr(sparse, "model", SimpleNamespace(device=torch.device("cuda"), config=sparse.model.config))
    assert len(text.ids) * 2048 <= GPU_BATCH_TOKENS
    assert sizes(Served("sparse", sparse), text, 2048) == [2048]
    clips = [whisper.read(tone(0.3, number), "clip") for number in range(BATCH_CLIPS + 3)]
    together = [len(batch) for batch in whisper.batches(clips)]
    assert sizes(ServedSpeech("tiny", whisper), clips[0], len(clips)) == together == [BATCH_CLIPS, 3]
