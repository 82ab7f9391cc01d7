"""Texts explained one by one: the source tokens that a model drops, and its output with and without them."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from l0drop.decoding.results import Explained, Result
from l0drop.decoding.text import TextModel


@dataclass(frozen=True, eq=False)
class ExplainedText:
    """A text, with the prefix that the model reads before it, explained.

    full: the output on the full gated memory, if asked for; this is not the model without gates.
    """

    source: str
    explained: Explained
    full: Result | None
    is_gated: bool

    @property
    def read(self) -> str:
        """The part of the source that the model read; it cuts a text that is too long."""
        if not self.explained.cut:
            return self.source
        return self.source[: max((token.end or 0 for token in self.explained.source), default=0)]

    def as_json(self) -> dict[str, Any]:
        explained, kept = self.explained, set(self.explained.kept)
        gates = [None] * len(explained.source) if explained.gates is None else explained.gates.tolist()
        values = {
            "source": self.source,
            "tokens": [
                {"text": token.text, "start": token.start, "end": token.end, "kept": i in kept, "gate": gate}
                for i, (token, gate) in enumerate(zip(explained.source, gates, strict=True))
            ],
            "gated": self.is_gated,
            "kept_tokens": len(kept),
            "source_tokens": len(explained.source),
            "cut": explained.cut,
            "text": explained.text,
            "score": explained.score,
        }
        return values if self.full is None else {**values, "dense": {"text": self.full.text, "score": self.full.score}}


def explain_texts(
    model: TextModel,
    texts: Iterable[str],
    settings: Mapping[str, Any],
    *,
    prefix: str | None = None,
    dense: bool = False,
) -> Iterator[ExplainedText]:
    """Explain each text with these settings of `TextModel.explain`; dense: decode on the full gated memory as well.

    A text that is too long is cut without a warning; `Explained.cut` says so.
    """
    prefix = model.prefix if prefix is None else prefix
    for text in texts:
        source = prefix + text  # as one text, so that tokens of the prefix have offsets too
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*too long for the model")
            explained = model.explain(source, prefix="", **settings)
            full = model.generate([source], prefix="", **settings, dense=True)[0] if dense else None
        yield ExplainedText(source, explained, full, model.is_gated)
