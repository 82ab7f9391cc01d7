"""Decode a file with Ray Data, on one machine or on a cluster: one output line per input line, in order.

    pip install 'l0drop[ray]'
    python examples/bulk_ray.py runs/demo/translation/sparse input.txt output.jsonl --workers 2

Each worker loads the model once. Ray starts a worker again that dies, and repeats the rows it had not finished.
`--gpus 1` gives every worker a GPU. On a cluster, the model folder must be at the same path on every machine.
"""

import argparse
import json
from pathlib import Path

import ray

from l0drop.decoding.columns import DecodeColumns

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("input", type=Path)
parser.add_argument("output", type=Path)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--gpus", type=float, default=0)
parser.add_argument("--dtype")
parser.add_argument("--beams", type=int)
parser.add_argument("--batch", type=int, default=256)
arguments = parser.parse_args()

generation = {} if arguments.beams is None else {"num_beams": arguments.beams}
lines = arguments.input.read_text(encoding="utf-8").splitlines()
rows = ray.data.from_items([{"line": number, "text": text} for number, text in enumerate(lines, 1)])
decoded = rows.map_batches(
    DecodeColumns,
    fn_constructor_args=[arguments.model],
    fn_constructor_kwargs={"dtype": arguments.dtype, "threads": 1, **generation},
    batch_size=arguments.batch,
    concurrency=arguments.workers,
    num_gpus=arguments.gpus or None,
)
with arguments.output.open("w", encoding="utf-8") as output:
    for row in sorted(decoded.take_all(), key=lambda row: row["line"]):
        score = None if row["score"] != row["score"] else float(row["score"])
        values = {"line": int(row["line"]), "text": row["output"], "score": score, "kept": float(row["kept_share"])}
        output.write(json.dumps(values, ensure_ascii=False) + "\n")
