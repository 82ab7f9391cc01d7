"""From a recipe to tokenizers, corpora and a model."""

import copy
import functools
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel, PreTrainedModel
from transformers.utils import cached_file

from l0drop.core.gates import gate_class
from l0drop.data.corpus import TokenizedCorpus
from l0drop.data.hints import Frequencies, TextAnnotator, annotator_for, counted_tokens
from l0drop.data.prepare import prepare_corpus, source_rows, usable_pairs
from l0drop.data.sources import open_text
from l0drop.data.tagger import PRETAGGED
from l0drop.data.text import ParallelText
from l0drop.data.tokenizer import TokenizerPair, fingerprint, load_tokenizers, train_tokenizer
from l0drop.decoding.folder import load_tokenizer
from l0drop.decoding.languages import is_multilingual, language_id
from l0drop.models.config import L0DropConfig
from l0drop.models.families import positions_of
from l0drop.models.modeling import L0DropModel
from l0drop.models.patterns import FREQUENT, RARE
from l0drop.models.sparsify import sparsify
from l0drop.recipe import L0Drop, Recipe
from l0drop.training.teacher import TeacherText

Say = Callable[[str], None]
Progress = Callable[[int], None]


def build_tokenizers(recipe: Recipe, folder: Path, say: Say) -> TokenizerPair:
    """The run's tokenizers: those in its folder, or new ones, which are then stored there."""
    if (folder / "tokenizer").is_dir():
        tokenizers = load_tokenizers(folder)
        _check_kind(tokenizers, recipe, folder)
        return tokenizers
    if recipe.model.init is not None:
        if recipe.tokenizer.pretrained is not None:
            raise ValueError("tokenizer.pretrained: model.init has its tokenizer; leave this out")
        tokenizers = _speaking(load_tokenizers(recipe.model.init), recipe.model.init, recipe)
    elif (name := recipe.tokenizer.pretrained or recipe.model.pretrained) is not None:
        tokenizer = load_tokenizer(name, name)
        tokenizers = _speaking(TokenizerPair(tokenizer, tokenizer), name, recipe)
    else:
        assert recipe.tokenizer.vocab_size is not None
        say(f"training a tokenizer of {recipe.tokenizer.vocab_size} subwords")
        text = open_text(recipe.data.train, recipe.data.source_prefix)
        tokenizers = train_tokenizer(
            (pair.source for pair in text),
            None if text.source_only else (pair.target or "" for pair in text),
            vocab_size=recipe.tokenizer.vocab_size,
            shared=recipe.tokenizer.shared,
        )
    tokenizers.save(folder)
    return tokenizers


def _speaking(tokenizers: TokenizerPair, name: str, recipe: Recipe) -> TokenizerPair:
    """The tokenizers with the languages of the recipe; where a model knows several, targets have to be in one.

    A tokenizer that is not told writes the targets' language as the source's.
    """
    source, data = tokenizers.source, recipe.data
    asked = {"src_lang": ("source_lang", data.source_lang), "tgt_lang": ("target_lang", data.target_lang)}
    if not is_multilingual(source):
        for setting, language in asked.values():
            if language is not None:
                raise ValueError(f"data.{setting}: the tokenizer of {name} knows no languages; leave it out")
        return tokenizers
    spoken: dict[str, str] = {}
    for key, (setting, language) in asked.items():
        own: str | None = getattr(source, key, None)
        if language is not None or own is not None:
            spoken[key] = language or str(own)
            language_id(source, spoken[key], f"data.{setting}")
    if "tgt_lang" not in spoken:
        raise ValueError(f"data.target_lang: is missing; {name} knows several languages, say which one targets are in")
    folder = Path(name) / "tokenizer"
    tokenizer = load_tokenizer(name, folder if folder.is_dir() else name, **spoken)
    return TokenizerPair(tokenizer, tokenizer)


def build_corpora(
    recipe: Recipe, folder: Path, tokenizers: TokenizerPair, say: Say, progress: Callable[[str], Progress] | None = None
) -> dict[str, TokenizedCorpus]:
    """The tokenized corpora of the run, with the hints that its gate needs, made where they are not there yet."""
    annotator = build_annotator(recipe, folder, tokenizers, say)
    corpora = {}
    for split in ("train", "valid", "test"):
        if getattr(recipe.data, split) is None:
            continue
        say(f"preparing {split}")
        corpora[split] = prepare_corpus(
            split_text(recipe, split, tokenizers),
            tokenizers,
            folder / "data" / split,
            max_source=recipe.data.max_source,
            max_target=recipe.data.max_target,
            documents=recipe.data.documents,
            annotator=annotator,
            progress=progress(split) if progress else None,
            instead=Path(recipe.model.init) / "data" / split if recipe.model.init is not None else None,
        )
    return corpora


def build_annotator(recipe: Recipe, folder: Path, tokenizers: TokenizerPair, say: Say) -> TextAnnotator | None:
    """What makes the hints of the run's gate: what its folder has, or a new one, which is then stored there."""
    needs = () if recipe.l0drop is None else gate_class(recipe.l0drop.gate).needs
    if not needs:
        return None
    if (known := annotator_for(folder, tokenizers.source)) is not None:
        return known
    data = recipe.data
    frequencies = None
    if FREQUENT in needs or RARE in needs:
        say("counting words of train")
        rows = source_rows(
            open_text(data.train, data.source_prefix),
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


def split_text(recipe: Recipe, split: str, tokenizers: TokenizerPair) -> ParallelText:
    """The text of a split; where targets are the teacher's, with its outputs."""
    text = open_text(getattr(recipe.data, split), recipe.data.source_prefix)
    if recipe.train.targets == "references" or not (split == "train" or text.source_only):
        return text
    teacher = recipe.train.teacher
    assert teacher is not None
    name = teacher.model if teacher.model != "init" else recipe.model.init or recipe.model.pretrained
    assert name is not None
    return TeacherText(
        text=text,
        load=functools.partial(_load_teacher, recipe, name, tokenizers),
        tokenizers=tokenizers,
        identity={"model": name, "weights": weights_stamp(name), "tokenizer": fingerprint(tokenizers.source)},
        beams=teacher.beams,
        max_source=recipe.data.max_source,
        max_new_tokens=teacher.max_new_tokens or recipe.data.max_target,
    )


def _load_teacher(recipe: Recipe, name: str, tokenizers: TokenizerPair) -> PreTrainedModel:
    model = load_dense(name).eval()
    _check_teacher(model, recipe, name, tokenizers)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def weights_stamp(name: Path | str) -> str | None:
    """Tells one teacher from another under the same path; a name on the hub has to speak for itself."""
    files = sorted(_model_folder(str(name)).glob("*.safetensors"))
    if not files:
        return None
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def references(recipe: Recipe, tokenizers: TokenizerPair, split: str) -> list[str]:
    """The uncut target texts of a split, one per example."""
    data = recipe.data
    pairs = usable_pairs(
        split_text(recipe, split, tokenizers),
        tokenizers,
        max_source=data.max_source,
        max_target=data.max_target,
        documents=data.documents,
    )
    return [pair.target or "" for pair in pairs]


def _model_folder(name: str) -> Path:
    """Where the model of a run folder, or of a model folder, is."""
    inner = Path(name) / "model"
    return inner if inner.is_dir() else Path(name)


def load_dense(name: str) -> PreTrainedModel:
    """A model without its gate: a run folder, a model folder, or a name on the hub."""
    folder = _model_folder(name)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise ValueError(f"{name}: no trained model here (expected {name}/model); train that recipe first")
    model = AutoModelForSeq2SeqLM.from_pretrained(str(folder) if folder.is_dir() else name)
    if isinstance(model, L0DropModel):
        raise ValueError(f"{name}: this model is sparse already; start from the baseline it was trained from")
    return _frozen_tables(model)


def build_model(recipe: Recipe, tokenizers: TokenizerPair) -> tuple[Any, PreTrainedModel | None]:
    """The model that is trained, and its teacher where the recipe has one."""
    torch.manual_seed(recipe.seed)
    start = recipe.model.init or recipe.model.pretrained
    base = new_transformer(recipe, tokenizers) if start is None else load_dense(start)
    _check_vocabulary(base, tokenizers, start or "model.transformer")
    _check_positions(base, recipe, start or "model.transformer")
    if recipe.model.dropout is not None:
        _set_dropout(base, recipe.model.dropout)
    teacher = None
    if recipe.train.teacher is not None and recipe.train.teacher.weight:
        name = recipe.train.teacher.model
        teacher = (copy.deepcopy(base) if name == "init" else load_dense(name)).eval().requires_grad_(False)
        if name != "init":
            _check_teacher(teacher, recipe, name, tokenizers)
            _check_distributions(teacher, base, name, start or "model.transformer")
    if recipe.l0drop is None:
        return base, teacher
    model = sparsify(base, gate_config(recipe.l0drop, tokenizers))
    if recipe.train.freeze == "all_but_gate":
        gates = {id(p) for p in (*model.gate.parameters(), *model.inner_gates.parameters())}
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in gates)
    return model, teacher


def gate_config(section: L0Drop, tokenizers: TokenizerPair) -> L0DropConfig:
    """The recipe's section as a config; tokens given by name become ids."""
    values = section.model_dump(exclude={"ramp", "always_keep"})
    if values["gate"] != "learned" and values["lambda_"] is None:
        values["lambda_"] = 0.0
    return L0DropConfig(**values, always_keep=tuple(_token_ids(section, tokenizers)))


def _token_ids(section: L0Drop, tokenizers: TokenizerPair) -> Iterator[int]:
    vocabulary = tokenizers.source.get_vocab()
    ids = set(vocabulary.values())
    for token in section.always_keep:
        if token not in (vocabulary if isinstance(token, str) else ids):
            raise ValueError(f"l0drop.always_keep: {token!r} is not in the source vocabulary")
        yield vocabulary[token] if isinstance(token, str) else token


def new_transformer(recipe: Recipe, tokenizers: TokenizerPair) -> MarianMTModel:
    """A Marian Transformer with Xavier weights: from scratch it trains better than with Marian's own start.

    Deep ones have the weights of their l-th layer divided by √l: what a layer adds to its input is then small beside
    it, and gradients reach the lower layers through the normalisations in between.
    """
    sizes = recipe.model.transformer
    assert sizes is not None
    source, target = tokenizers.source, tokenizers.target
    config = MarianConfig(
        vocab_size=len(source),
        decoder_vocab_size=len(target),
        share_encoder_decoder_embeddings=tokenizers.shared,
        d_model=sizes.d_model,
        encoder_layers=sizes.encoder_layers,
        decoder_layers=sizes.decoder_layers,
        encoder_attention_heads=sizes.heads,
        decoder_attention_heads=sizes.heads,
        encoder_ffn_dim=sizes.ffn,
        decoder_ffn_dim=sizes.ffn,
        dropout=sizes.dropout,
        attention_dropout=sizes.attention_dropout,
        activation_dropout=sizes.activation_dropout,
        max_position_embeddings=sizes.positions,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=target.pad_token_id,
        eos_token_id=target.eos_token_id,
        bos_token_id=target.bos_token_id,
        decoder_start_token_id=target.bos_token_id,
        forced_eos_token_id=None,
    )
    model = MarianMTModel(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and "embed_positions" not in name:
            if "shared" in name or "embed_tokens" in name or "lm_head" in name:
                torch.nn.init.normal_(parameter, 0, sizes.d_model**-0.5)
            else:
                torch.nn.init.xavier_uniform_(parameter)
    deep = max(sizes.encoder_layers, sizes.decoder_layers) > 2
    if deep if sizes.depth_scaled is None else sizes.depth_scaled:
        for side in (model.get_encoder(), model.get_decoder()):
            _scale_by_depth(side.layers)
    return _frozen_tables(model)


@torch.no_grad()
def _scale_by_depth(layers: Any) -> None:
    for number, layer in enumerate(layers, 1):
        for parameter in layer.parameters():
            if parameter.dim() == 2:
                parameter /= number**0.5


def _frozen_tables(model: Any) -> Any:
    # sinusoidal tables are constants, but come back from a checkpoint as trainable parameters
    for module in model.modules():
        if "Sinusoidal" in type(module).__name__:
            module.requires_grad_(False)
    return model


def _check_kind(tokenizers: TokenizerPair, recipe: Recipe, folder: Path) -> None:
    if recipe.tokenizer.vocab_size is not None and tokenizers.shared != recipe.tokenizer.shared:
        kinds = {True: "one vocabulary for both sides", False: "one vocabulary for each side"}
        raise ValueError(
            f"{folder}: has {kinds[tokenizers.shared]}, but the recipe trains {kinds[recipe.tokenizer.shared]} "
            f"(tokenizer.shared: {str(recipe.tokenizer.shared).lower()}); delete the folder to start again"
        )


def _check_teacher(teacher: PreTrainedModel, recipe: Recipe, name: str, tokenizers: TokenizerPair) -> None:
    """A teacher reads and writes the run's ids: they should be the same tokens to it, and their rows not too long."""
    is_start = name == (recipe.model.init or recipe.model.pretrained)
    own = None if is_start else _tokenizers_beside(name)
    for side in ("source", "target") if own is not None else ():
        # not fingerprints: a tokenizer that was saved again may differ in what changes no id, such as its language
        theirs, ours = (getattr(pair, side).get_vocab() for pair in (own, tokenizers))
        if theirs != ours:
            first = min(place for _, place in theirs.items() ^ ours.items())
            raise ValueError(
                f"train.teacher.model: {name} and {recipe.name} have different {side} vocabularies ({len(theirs)} and "
                f"{len(ours)} entries, different from id {first} on); a teacher needs the tokenizer of what it teaches"
            )
    _check_vocabulary(teacher, tokenizers, f"train.teacher.model: {name}")
    _check_positions(teacher, recipe, name, scored=False)


def _tokenizers_beside(name: str) -> TokenizerPair | None:
    """The tokenizers of a run folder, a model folder, or a name on the hub; None where there are none."""
    if (Path(name) / "tokenizer").is_dir():
        return load_tokenizers(name)
    folder = _model_folder(name)
    place = str(folder) if folder.is_dir() else name
    missing = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    if cached_file(place, "tokenizer_config.json", **missing) is None:
        return None
    source, target = AutoTokenizer.from_pretrained(place), folder / "tokenizer_target"
    return TokenizerPair(source, AutoTokenizer.from_pretrained(target) if target.is_dir() else source)


def _check_distributions(teacher: PreTrainedModel, student: PreTrainedModel, name: str, start: str) -> None:
    theirs, ours = (len(model.get_output_embeddings().weight) for model in (teacher, student))
    if theirs != ours:
        raise ValueError(
            f"train.teacher.model: {name} has {theirs} output embeddings and {start} {ours}; distributions are learned "
            "from a teacher of the same vocabulary"
        )


def _check_vocabulary(model: PreTrainedModel, tokenizers: TokenizerPair, name: str) -> None:
    rows = int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]
    largest = max(tokenizers.source.get_vocab().values())
    if largest >= rows:
        raise ValueError(
            f"{name}: the model's vocabulary has {rows} entries, but the tokenizer has ids up to {largest}; "
            "they are of different vocabularies"
        )


def _check_positions(model: PreTrainedModel, recipe: Recipe, name: str, *, scored: bool = True) -> None:
    """scored: whether its own outputs are made."""
    lengths = [
        ("data.max_source", recipe.data.max_source, "encoder"),
        ("data.max_target", recipe.data.max_target, "decoder"),
    ]
    if scored and recipe.evaluate.max_new_tokens is not None:
        lengths.append(("evaluate.max_new_tokens", recipe.evaluate.max_new_tokens, "decoder"))
    for key, length, side in lengths:
        positions = positions_of(model, side)
        if positions is not None and length > positions:
            raise ValueError(f"{key}: {length} is more than the {positions} positions of {name}'s {side}; lower it")


def _set_dropout(model: PreTrainedModel, rate: float) -> None:
    """Set every dropout rate of the model that is not 0, of residuals, attention and activations alike.

    Modules copy their rate from the config when they are built; the config is for the next load.
    """
    names = ("dropout", "dropout_rate", "attention_dropout", "activation_dropout")
    for name in names:
        if getattr(model.config, name, 0):
            setattr(model.config, name, rate)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout) and module.p:
            module.p = rate
        for name in names:
            if isinstance(getattr(module, name, None), float) and getattr(module, name):
                setattr(module, name, rate)
