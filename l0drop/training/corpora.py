"""From a recipe to tokenizers and corpora."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from transformers import PreTrainedModel

from l0drop.core.gates import GATES
from l0drop.data.corpus import TokenizedCorpus
from l0drop.data.held_out import held_out_counts, open_split
from l0drop.data.hints import Frequencies, TextAnnotator, annotator_for, counted_tokens
from l0drop.data.prepare import prepare_corpus, source_rows, usable_pairs
from l0drop.data.tagger import PRETAGGED
from l0drop.data.text import CorpusError, ParallelText
from l0drop.data.tokenizer import TokenizerPair, fingerprint, load_tokenizers, read_tokenizer, train_tokenizer
from l0drop.decoding.languages import is_multilingual, language_id
from l0drop.models.patterns import FREQUENT, RARE
from l0drop.recipe import Recipe
from l0drop.runs.run import RunFolder
from l0drop.training.assemble import check_teacher, load_dense, teacher_name, weights_stamp
from l0drop.training.bars import NO_BARS, Bars, Update
from l0drop.training.teacher import TeacherText

Say = Callable[[str], None]


def build_tokenizers(recipe: Recipe, folder: Path, say: Say, bars: Bars = NO_BARS) -> TokenizerPair:
    """The tokenizers in the run's folder, or new ones, which are stored there."""
    if RunFolder(folder).tokenizer.is_dir():
        tokenizers = load_tokenizers(folder)
        _check_kind(tokenizers, recipe, folder)
        return tokenizers
    if recipe.model.init is not None:
        if recipe.tokenizer.pretrained is not None:
            raise ValueError("tokenizer.pretrained: model.init has its own tokenizer; remove this key")
        tokenizers = load_tokenizers(recipe.model.init)
        if not recipe.is_audio:
            tokenizers = _with_languages(tokenizers, recipe.model.init, recipe)
    elif (name := recipe.tokenizer.pretrained or recipe.model.pretrained) is not None:
        tokenizer = read_tokenizer(name)
        tokenizers = (
            TokenizerPair(tokenizer, tokenizer)
            if recipe.is_audio
            else _with_languages(TokenizerPair(tokenizer, tokenizer), name, recipe)
        )
    else:
        assert recipe.tokenizer.vocab_size is not None
        say(f"training a tokenizer with {recipe.tokenizer.vocab_size:,} subwords")
        text = open_split(recipe.data, "train", recipe.data.source_prefix)
        with bars.phase("tokenizer: lines read") as update:
            tokenizers = train_tokenizer(
                _counted((pair.source for pair in text), update),
                None if text.source_only else (pair.target or "" for pair in text),
                vocab_size=recipe.tokenizer.vocab_size,
                shared=recipe.tokenizer.shared,
            )
    tokenizers.save(folder)
    return tokenizers


def _counted(lines: Iterator[str], update: Update) -> Iterator[str]:
    number = 0
    for number, line in enumerate(lines, 1):
        yield line
        if number % 1000 == 0:
            update(number)
    update(number)


def _check_kind(tokenizers: TokenizerPair, recipe: Recipe, folder: Path) -> None:
    if recipe.tokenizer.vocab_size is not None and tokenizers.shared != recipe.tokenizer.shared:
        kinds = {True: "one shared vocabulary", False: "one vocabulary per side"}
        raise ValueError(
            f"{folder}: has {kinds[tokenizers.shared]}, but the recipe trains {kinds[recipe.tokenizer.shared]} "
            f"(tokenizer.shared: {str(recipe.tokenizer.shared).lower()}); delete the folder to start again"
        )


def _with_languages(tokenizers: TokenizerPair, name: str, recipe: Recipe) -> TokenizerPair:
    """The tokenizers set to the languages of the recipe; a multilingual model needs a target language.

    Without one, its tokenizer would mark targets with the language of the source.
    """
    source, data = tokenizers.source, recipe.data
    asked = {"src_lang": ("source_lang", data.source_lang), "tgt_lang": ("target_lang", data.target_lang)}
    if not is_multilingual(source):
        for setting, language in asked.values():
            if language is not None:
                raise ValueError(f"data.{setting}: the tokenizer of {name} has no languages; remove this key")
        return tokenizers
    languages: dict[str, str] = {}
    for key, (setting, language) in asked.items():
        own: str | None = getattr(source, key, None)
        if language is not None or own is not None:
            languages[key] = language or str(own)
            language_id(source, languages[key], f"data.{setting}")
    if "tgt_lang" not in languages:
        raise ValueError(f"data.target_lang: is missing; {name} is multilingual, so name the language of the targets")
    folder = RunFolder(Path(name)).tokenizer
    tokenizer = read_tokenizer(folder if folder.is_dir() else name, **languages)
    return TokenizerPair(tokenizer, tokenizer)


def build_corpora(
    recipe: Recipe, folder: Path, tokenizers: TokenizerPair, say: Say, bars: Bars = NO_BARS
) -> dict[str, TokenizedCorpus]:
    """The tokenized corpora of the run with the hints that its gate needs; missing ones are written."""
    annotator = build_annotator(recipe, folder, tokenizers, say)
    earlier = [folder] if recipe.model.init is None else [folder, Path(recipe.model.init)]
    held_out = held_out_counts(recipe.data)
    if held_out and not any(_is_held_out(RunFolder(run).data / "train", held_out) for run in earlier):
        say(_held_out_line(held_out))
    corpora = {}
    for split in recipe.data.splits:
        by_teacher = has_teacher_outputs(recipe, split)
        with bars.phase(f"{split}: lines {'translated' if by_teacher else 'tokenized'}") as update:
            corpora[split] = prepare_corpus(
                split_text(recipe, split, tokenizers, update),
                tokenizers,
                RunFolder(folder).data / split,
                max_source=recipe.data.max_source,
                max_target=recipe.data.max_target,
                documents=recipe.data.documents,
                annotator=annotator,
                progress=None if by_teacher else update,
                instead=RunFolder(Path(recipe.model.init)).data / split if recipe.model.init is not None else None,
            )
    return corpora


def _is_held_out(corpus: Path, counts: dict[str, int]) -> bool:
    """Whether a training corpus was made earlier without these numbers of lines, which were reported then."""
    try:
        inputs = TokenizedCorpus.open(corpus).manifest["request"]["inputs"]
    except CorpusError:
        return False
    return any(item.get("held_out") == counts for item in inputs)


def _held_out_line(counts: dict[str, int]) -> str:
    names = {"valid": "validation", "test": "test"}
    lines = " and ".join(f"{counts[split]:,} {name}" for split, name in names.items() if split in counts)
    return (
        f"{lines} lines held out; {counts['removed_from_training']:,} lines removed from training, duplicates included"
    )


def build_annotator(recipe: Recipe, folder: Path, tokenizers: TokenizerPair, say: Say) -> TextAnnotator | None:
    """The annotator that makes the hints of the run's gate: the one in its folder, or a new one, stored there."""
    needs = () if recipe.l0drop is None else GATES.class_of(recipe.l0drop.gate).needs
    if not needs:
        return None
    if (known := annotator_for(folder, tokenizers.source)) is not None:
        return known
    data = recipe.data
    frequencies = None
    if FREQUENT in needs or RARE in needs:
        say("counting the words of the training text")
        rows = source_rows(
            open_split(data, "train", data.source_prefix),
            tokenizers,
            functools.partial(counted_tokens, tokenizers.source),
            max_source=data.max_source,
            max_target=data.max_target,
            documents=data.documents,
        )
        frequencies = Frequencies.count(rows)
    tagger = PRETAGGED if data.is_tagged else data.tagger
    annotator = TextAnnotator(needs, tokenizers.source, tagger, data.language, frequencies)
    annotator.save(folder)
    return annotator


def has_teacher_outputs(recipe: Recipe, split: str) -> bool:
    """Whether the targets of a split are the teacher's outputs."""
    has_targets = recipe.data.origin(split)[0].has_targets
    return recipe.train.targets == "teacher" and (split == "train" or not has_targets)


def split_text(
    recipe: Recipe, split: str, tokenizers: TokenizerPair, translated: Update = lambda lines: None
) -> ParallelText:
    """The text of a split, with the teacher's outputs as targets if the recipe says so.

    `translated` is called with the number of lines that the teacher has translated.
    """
    text = open_split(recipe.data, split, recipe.data.source_prefix)
    if not has_teacher_outputs(recipe, split):
        return text
    teacher, name = recipe.train.teacher, teacher_name(recipe)
    assert teacher is not None
    return TeacherText(
        text=text,
        load=functools.partial(_load_teacher, recipe, name, tokenizers),
        tokenizers=tokenizers,
        identity={"model": name, "weights": weights_stamp(name), "tokenizer": fingerprint(tokenizers.source)},
        beams=teacher.beams,
        max_source=recipe.data.max_source,
        max_new_tokens=teacher.max_new_tokens or recipe.data.max_target,
        translated=translated,
    )


def _load_teacher(recipe: Recipe, name: str, tokenizers: TokenizerPair) -> PreTrainedModel:
    model = load_dense(name).eval()
    check_teacher(model, recipe, name, tokenizers)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def references(recipe: Recipe, tokenizers: TokenizerPair, split: str, bars: Bars = NO_BARS) -> list[str]:
    """The uncut target texts of a split, one per example; a teacher's outputs are made again."""
    data = recipe.data
    with bars.phase(f"{split}: references from the teacher") as update:
        pairs = usable_pairs(
            split_text(recipe, split, tokenizers, update),
            tokenizers,
            max_source=data.max_source,
            max_target=data.max_target,
            documents=data.documents,
        )
        return [pair.target or "" for pair in pairs]
