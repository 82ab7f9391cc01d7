"""Many clients at once: every accepted request is answered and right, and together they are faster than one by one."""

import os
import random
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from l0drop import load
from l0drop.app.serve.limits import Limits
from l0drop.app.serve.models import Served
from l0drop.decoding.text import TextModel
from tests.app.serve.running import process, running
from tests.training import tiny

CLIENTS = 64
SEARCH = {"num_beams": 2, "max_new_tokens": 24}


def resident(process_id: int) -> int:
    """Bytes of memory of a process."""
    return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def texts(count: int) -> list[str]:
    """Sentences of mixed lengths."""
    source = random.Random(1)
    return [
        " ".join(f"the {source.choice(tiny.NOUNS)}" for _ in range(source.choice((1, 2, 3, 5, 8, 12)))) + " ."
        for _ in range(count)
    ]


def statuses(url: str) -> Counter[str]:
    """What the service says that it has answered, once it has nothing left to do."""
    until = time.monotonic() + 10
    while True:
        metrics = httpx.get(url + "/metrics").text
        if "l0drop_requests_in_progress 1.0\n" in metrics and "l0drop_queue_texts 0.0\n" in metrics:
            found = re.findall(r'^l0drop_requests_total\{path="/v1/generate",status="(\d+)"\} (\S+)$', metrics, re.M)
            return Counter({status: int(float(count)) for status, count in found})
        assert time.monotonic() < until, "requests or texts are left"
        time.sleep(0.05)


class Load:
    """Clients that ask again as soon as they have an answer. seen: the statuses that they got."""

    def __init__(self, url: str, model: TextModel, count: int = 400) -> None:
        self.url, self.texts = url, texts(count)
        results = model.generate(self.texts, **SEARCH)
        self.wanted = {text: result.text for text, result in zip(self.texts, results, strict=True)}
        self.seen = Counter[str]()

    def client(self, number: int, seconds: float) -> tuple[list[float], int]:
        """The times of this client's answers, and the number of refusals."""
        source, times, refused = random.Random(number), [], 0
        end = time.monotonic() + seconds
        with httpx.Client(base_url=self.url, timeout=60, verify=False) as client:
            while time.monotonic() < end:
                text, began = source.choice(self.texts), time.monotonic()
                answer = client.post("/v1/generate", json={"text": text, **SEARCH})
                if answer.status_code == 503:
                    refused += 1
                    time.sleep(0.05)
                    continue
                assert answer.status_code == 200, answer.text
                assert answer.json()["results"][0]["text"] == self.wanted[text]
                times.append(time.monotonic() - began)
        return times, refused

    def run(self, clients: int, seconds: float) -> dict[str, Any]:
        with ThreadPoolExecutor(clients) as pool:
            done = list(pool.map(lambda number: self.client(number, seconds), range(clients)))
        times = sorted(time for found, _ in done for time in found)
        refused = sum(refused for _, refused in done)
        self.seen += Counter({"200": len(times), "503": refused})
        return {
            "per_second": len(times) / seconds,
            "refused": refused,
            **{f"P{part}": times[int(part / 100 * (len(times) - 1))] for part in (50, 95, 99)},
        }


def test_many_clients_get_right_answers_together(sparse: TextModel) -> None:
    """A few seconds of it, with a queue that is too small for all."""
    with running([Served("sparse", sparse)], limits=Limits(queue=24)) as service:
        asked = Load(service.url, sparse, 60)
        found = asked.run(40, 1.5)
        assert found["per_second"] > 0
        assert found["refused"] > 0
        assert statuses(service.url) == asked.seen
        assert service.metric("l0drop_batch_texts_sum", model="sparse") > 2 * service.metric(
            "l0drop_batch_texts_count", model="sparse"
        )


def model_folder(sparse_folder: Path) -> Path:
    """The demo's model, if L0DROP_LOAD_MODEL names it."""
    return Path(os.environ.get("L0DROP_LOAD_MODEL", sparse_folder))


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [60, pytest.param(1800, id="soak")])
def test_load(sparse_folder: Path, tmp_path: Path, seconds: int, capsys: pytest.CaptureFixture[str]) -> None:
    """64 clients: answers are right, memory is flat, and throughput is a multiple of that of one client."""
    folder = model_folder(sparse_folder)
    with process(folder, tmp_path / "log", threads=2) as (url, service):
        asked = Load(url, load(folder, "cpu"))
        alone = asked.run(1, 10)
        asked.run(CLIENTS, 30)
        before = resident(service.pid)
        found = asked.run(CLIENTS, seconds)
        grown = resident(service.pid) - before
        assert statuses(url) == asked.seen
    with capsys.disabled():
        print(f"\none client: {alone}\n{CLIENTS} clients: {found}")
        print(f"memory grew from {before / 1e6:.0f} MB by {grown / 1e6:.0f} MB")
    assert found["per_second"] >= 3 * alone["per_second"]
    assert grown < 50e6
