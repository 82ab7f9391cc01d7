"""Decode a file with Ray Data, on one machine or on a cluster: one output line per input line, in order.

    pip install 'l0drop[ray]'
    python examples/bulk_ray.py runs/demo/translation/sparse input.txt output.jsonl --workers 2

Each worker loads the model once. Ray starts a worker again that dies, and repeats the rows it had not finished.
`--gpus 1` gives every worker a GPU. On a cluster, the model folder must be at the same path on every machine. Lines are
read as by `l0drop translate`: only LF or CR LF ends one, and a name ending in .jsonl means JSON lines.
"""

import argparse
import json
from pathlib import Path

import ray

from l0drop.data.whole import write_whole
from l0drop.decoding.columns import DecodeColumns
from l0drop.decoding.lines import TextInput

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
with TextInput(arguments.input).opened() as lines:
    rows = ray.data.from_items([{"line": number, "text": text} for number, text in enumerate(lines, 1)])
decoded = rows.map_batches(
    DecodeColumns,
    fn_constructor_args=[arguments.model],
    fn_constructor_kwargs={"dtype": arguments.dtype, "threads": 1, **generation},
    batch_size=arguments.batch,
    concurrency=arguments.workers,
    num_gpus=arguments.gpus or None,
)
output = []
for row in sorted(decoded.take_all(), key=lambda row: row["line"]):
    score = None if row["score"] != row["score"] else float(row["score"])
    values = {"line": int(row["line"]), "text": row["output"], "score": score, "kept": float(row["kept_share"])}
    output.append(json.dumps(values, ensure_ascii=False) + "\n")
write_whole(arguments.output, "".join(output))
