"""Generated corpora for demos and tests, without a download: a translation and a summarization task."""

from l0drop.data.toy.documents import documents, documents_split
from l0drop.data.toy.pair import ToyPair
from l0drop.data.toy.translation import translation, translation_split

__all__ = ["ToyPair", "documents", "documents_split", "translation", "translation_split"]
