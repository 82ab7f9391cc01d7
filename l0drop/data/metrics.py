"""Scores of generated text, each with a signature that says how to reproduce it."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, get_args

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from l0drop.data.score import BleuTokenizer, MetricName, Score

if TYPE_CHECKING:
    from l0drop.recipe import Evaluate

_TOKENIZER_13A = Tokenizer13a()
_ROUGE_TYPES = ("rouge1", "rouge2", "rougeLsum")
_SENTENCE_END = re.compile(r"""(?<=[.!?])\s+|(?<=[.!?]["'”’)])\s+""")


Scorer = Callable[[Sequence[str], Sequence[str]], Score]
"""Scores outputs against references."""


def scorer(metric: MetricName, tokenize: BleuTokenizer = "13a") -> Scorer:
    """The metric of that name; `tokenize` is for `bleu` alone."""
    scorers: dict[MetricName, Scorer] = {
        "bleu": partial(bleu, tokenize=tokenize),
        "bleu_paper": bleu_paper,
        "chrf": chrf,
        "rouge": rouge,
    }
    return scorers[metric]


def scorer_of(evaluate: "Evaluate") -> Scorer:
    """The metric of a recipe, for text or for transcripts."""
    if evaluate.metric == "wer" or evaluate.metric == "cer":
        from l0drop.data import speech_metrics  # imports Whisper

        return speech_metrics.wer if evaluate.metric == "wer" else speech_metrics.cer
    return scorer(evaluate.metric, evaluate.tokenize)


def sacrebleu_metric(
    metric: MetricName, tokenize: BleuTokenizer = "13a", *, lowercase: bool = False, force: bool = False
) -> BLEU | CHRF:
    """sacreBLEU's object for `bleu`, `bleu_paper` (of texts as `compound_split` tokenizes them) or `chrf`.

    tokenize, lowercase, force: for `bleu`; `force` silences the warning about text that looks tokenized.
    """
    match metric:
        case "bleu":
            return BLEU(tokenize=tokenize, lowercase=lowercase, force=force)
        case "bleu_paper":
            return BLEU(tokenize="none", smooth_method="none", force=True)
        case "chrf":
            return CHRF()
        case "rouge":
            raise ValueError("rouge: is not a metric of sacreBLEU")


def bleu(hyps: Sequence[str], refs: Sequence[str], tokenize: BleuTokenizer = "13a", lowercase: bool = False) -> Score:
    """sacreBLEU of detokenized text; with tokenize="none", the text is split at spaces."""
    if tokenize not in get_args(BleuTokenizer):
        raise ValueError(f"`tokenize`: {tokenize!r} is not one of {', '.join(get_args(BleuTokenizer))}")
    return _bleu("BLEU", hyps, refs, sacrebleu_metric("bleu", tokenize, lowercase=lowercase, force=tokenize == "none"))


def bleu_paper(hyps: Sequence[str], refs: Sequence[str]) -> Score:
    """Tokenized case-sensitive BLEU, as papers report it for WMT14 En-De, from detokenized text.

    Both sides are tokenized by mteval-v13a's rules and hyphenated compounds are split, "a-b" to "a ##AT##-##AT## b",
    as in the common script get_ende_bleu.sh; then BLEU without smoothing, as in multi-bleu.perl. Those scripts use the
    Moses tokenizer, so their values differ slightly.
    """
    metric = sacrebleu_metric("bleu_paper")
    return _bleu("BLEU-paper", hyps, refs, metric, compound_split, tokenization="13a+compound-split")


def compound_split(text: str) -> str:
    """Text as tokenized by `bleu_paper`."""
    # One pass, as in the script: in "a-b-c" the second hyphen stays, because the first match consumes "b".
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", _TOKENIZER_13A(text))


def chrf(hyps: Sequence[str], refs: Sequence[str]) -> Score:
    """chrF2 of sacreBLEU: character n-grams up to 6, no words."""
    _check(hyps, refs)
    metric = sacrebleu_metric("chrf")
    result = metric.corpus_score(list(hyps), [list(refs)])
    details = {"char_order": result.char_order, "word_order": result.word_order, "beta": result.beta}
    return Score(result.name, float(result.score), str(metric.get_signature()), details)


def rouge(hyps: Sequence[str], refs: Sequence[str]) -> Score:
    """ROUGE-L (Lsum) as the value, ROUGE-1 and ROUGE-2 in the details: mean F-measure × 100, with Porter's stemmer.

    Lsum compares sentence by sentence. Sentences are lines; a text without a line feed is split at white space
    after ., ! or ? (and a closing quote or bracket). rouge-score reads only a-z and 0-9, so this is for English.
    """
    details = {kind: 100 * float(np.mean(scores)) for kind, scores in rouge_of_texts(hyps, refs).items()}
    signature = f"nrefs:1|stem:porter|sent:lines-or-.!?|agg:mean-F|rouge-score:{version('rouge-score')}"
    return Score("rougeLsum", details["rougeLsum"], signature, details)


def rouge_of_texts(hyps: Sequence[str], refs: Sequence[str]) -> dict[str, list[float]]:
    """F-measures of each text; their means are the scores of `rouge`."""
    from rouge_score.rouge_scorer import RougeScorer  # imports all of nltk, which nothing else needs

    _check(hyps, refs)
    scorer = RougeScorer(list(_ROUGE_TYPES), use_stemmer=True)
    scores = [scorer.score(_sentences(ref), _sentences(hyp)) for hyp, ref in zip(hyps, refs, strict=True)]
    return {kind: [score[kind].fmeasure for score in scores] for kind in _ROUGE_TYPES}


def _bleu(
    name: str,
    hyps: Sequence[str],
    refs: Sequence[str],
    metric: BLEU | CHRF,
    prepared: Callable[[str], str] = str,
    tokenization: str | None = None,
) -> Score:
    _check(hyps, refs)
    result = metric.corpus_score([prepared(hyp) for hyp in hyps], [[prepared(ref) for ref in refs]])
    signature = str(metric.get_signature())
    if tokenization:
        signature = signature.replace("tok:none", f"tok:{tokenization}")
    details = {f"precision{n}": float(value) for n, value in enumerate(result.precisions, 1)}
    details |= {"brevity_penalty": result.bp, "hyp_length": result.sys_len, "ref_length": result.ref_len}
    return Score(name, float(result.score), signature, details)


def _check(hyps: Sequence[str], refs: Sequence[str]) -> None:
    if len(hyps) != len(refs):
        raise ValueError(f"{len(hyps)} hypotheses but {len(refs)} references: each hypothesis needs exactly one")
    if not hyps:
        raise ValueError("there is nothing to score: no hypotheses and no references")


def _sentences(text: str) -> str:
    return text if "\n" in text.strip() else "\n".join(_SENTENCE_END.split(text.strip()))
