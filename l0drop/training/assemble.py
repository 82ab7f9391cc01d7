"""From a recipe to tokenizers, corpora and a model."""

import copy
import functools
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import MarianConfig, MarianMTModel, PreTrainedModel
from transformers.utils import cached_file

from l0drop.core.gates import gate_class
from l0drop.data.corpus import TokenizedCorpus
from l0drop.data.held_out import held_out_counts, open_split
from l0drop.data.hints import Frequencies, TextAnnotator, annotator_for, counted_tokens
from l0drop.data.prepare import prepare_corpus, source_rows, usable_pairs
from l0drop.data.tagger import PRETAGGED
from l0drop.data.text import CorpusError, ParallelText
from l0drop.data.tokenizer import TokenizerPair, fingerprint, load_tokenizers, read_tokenizer, train_tokenizer
from l0drop.decoding.folder import check_exists, check_vocabulary, load_model
from l0drop.decoding.languages import is_multilingual, language_id
from l0drop.models.config import L0DropConfig
from l0drop.models.families import family_of, positions_of
from l0drop.models.modeling import L0DropModel
from l0drop.models.patterns import FREQUENT, RARE
from l0drop.models.sparsify import sparsify
from l0drop.recipe import L0Drop, Recipe
from l0drop.training.bars import NO_BARS, Bars, Update
from l0drop.training.teacher import TeacherText

Say = Callable[[str], None]


def build_tokenizers(recipe: Recipe, folder: Path, say: Say, bars: Bars = NO_BARS) -> TokenizerPair:
    """The tokenizers in the run's folder, or new ones, which are stored there."""
    if (folder / "tokenizer").is_dir():
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
    folder = Path(name) / "tokenizer"
    tokenizer = read_tokenizer(folder if folder.is_dir() else name, **languages)
    return TokenizerPair(tokenizer, tokenizer)


def build_corpora(
    recipe: Recipe, folder: Path, tokenizers: TokenizerPair, say: Say, bars: Bars = NO_BARS
) -> dict[str, TokenizedCorpus]:
    """The tokenized corpora of the run with the hints that its gate needs; missing ones are written."""
    annotator = build_annotator(recipe, folder, tokenizers, say)
    earlier = [folder] if recipe.model.init is None else [folder, Path(recipe.model.init)]
    held_out = held_out_counts(recipe.data)
    if held_out and not any(_is_held_out(run / "data" / "train", held_out) for run in earlier):
        say(_held_out_line(held_out))
    corpora = {}
    for split in recipe.data.splits:
        by_teacher = has_teacher_outputs(recipe, split)
        with bars.phase(f"{split}: lines {'translated' if by_teacher else 'tokenized'}") as update:
            corpora[split] = prepare_corpus(
                split_text(recipe, split, tokenizers, update),
                tokenizers,
                folder / "data" / split,
                max_source=recipe.data.max_source,
                max_target=recipe.data.max_target,
                documents=recipe.data.documents,
                annotator=annotator,
                progress=None if by_teacher else update,
                instead=Path(recipe.model.init) / "data" / split if recipe.model.init is not None else None,
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
    needs = () if recipe.l0drop is None else gate_class(recipe.l0drop.gate).needs
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


def teacher_name(recipe: Recipe) -> str:
    """The folder or the name of the recipe's teacher."""
    assert recipe.train.teacher is not None
    own = recipe.train.teacher.model
    name = recipe.model.init or recipe.model.pretrained if own == "init" else own
    assert name is not None
    return name


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


def weights_stamp(name: Path | str) -> str | None:
    """A digest of a model folder's weights, so that a changed teacher is noticed; None for a name on the hub."""
    files = sorted(model_folder(str(name)).glob("*.safetensors"))
    if not files:
        return None
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


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


def model_folder(name: str) -> Path:
    """The model folder inside a run folder, or the folder itself."""
    inner = Path(name) / "model"
    return inner if inner.is_dir() else Path(name)


def load_dense(name: str) -> PreTrainedModel:
    """Load a dense model from a run folder, a model folder or the hub."""
    folder = model_folder(name)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise ValueError(f"{name}: no trained model here (expected {name}/model); train that recipe first")
    check_exists(name)
    model = load_model(name, folder if folder.is_dir() else None, "auto")
    if isinstance(model, L0DropModel):
        raise ValueError(f"{name}: this model has gates already; start from its baseline")
    if model.dtype == torch.float16:  # in which small gradients vanish
        model.float()
    return _frozen_tables(model)


def build_model(recipe: Recipe, tokenizers: TokenizerPair) -> tuple[Any, PreTrainedModel | None]:
    """The model to train, and its teacher if it runs in training."""
    torch.manual_seed(recipe.seed)
    start = recipe.model.init or recipe.model.pretrained
    base = new_transformer(recipe, tokenizers) if start is None else load_dense(start)
    _check_task(base, recipe, start or "model.transformer")
    check_vocabulary(base, tokenizers, start or "model.transformer")
    _check_positions(base, recipe, start or "model.transformer")
    if recipe.model.dropout is not None:
        _set_dropout(base, recipe.model.dropout)
    teacher = None
    if recipe.train.teacher is not None and recipe.train.teacher.weight and recipe.train.teacher.top is None:
        name = recipe.train.teacher.model
        teacher = (copy.deepcopy(base) if name == "init" else load_dense(name)).eval().requires_grad_(False)
        if name != "init":
            check_teacher(teacher, recipe, name, tokenizers)
            _check_distributions(teacher, base, name, start or "model.transformer")
    if recipe.l0drop is None:
        _freeze(base, recipe.train.freeze)
        return base, teacher
    model = sparsify(base, gate_config(recipe.l0drop, tokenizers))
    _set_schedule(model, recipe, recipe.l0drop)
    _freeze(model, recipe.train.freeze)
    return model, teacher


def _check_task(model: PreTrainedModel, recipe: Recipe, name: str) -> None:
    reads_audio = family_of(type(model)).reads_audio
    if reads_audio != recipe.is_audio:
        kind = (
            "reads audio: set task: transcription" if reads_audio else "reads text: task: transcription needs a Whisper"
        )
        raise ValueError(f"task: {name} {kind}")


def _freeze(model: Any, freeze: str) -> None:
    """Keep the parameters fixed that the recipe says; gates are always trained."""
    if freeze == "nothing":
        return
    inner = (*model.gate.parameters(), *model.inner_gates.parameters()) if isinstance(model, L0DropModel) else ()
    gates = {id(parameter) for parameter in inner}
    if freeze == "embeddings":
        for embeddings in (model.get_input_embeddings(), model.get_output_embeddings()):
            embeddings.requires_grad_(False)
        return
    base = model.base_class if isinstance(model, L0DropModel) else type(model)
    fixed = base.get_encoder(model) if freeze == "encoder" else model
    embeddings = {id(parameter) for parameter in model.get_decoder().parameters()} if freeze == "encoder" else set()
    for parameter in fixed.parameters():
        if id(parameter) not in gates | embeddings:  # an embedding that encoder and decoder share is trained
            parameter.requires_grad_(False)


def _set_schedule(model: Any, recipe: Recipe, section: L0Drop) -> None:
    """The recipe's settings of λ; a new model learns to read before its gates may close."""
    rise = None if section.ramp is None else (section.ramp.start, section.ramp.end)
    ramp = round(recipe.train.steer_over * recipe.train.steps)
    wait = ramp if recipe.model.transformer is not None else 0
    model.set_schedule(rise, ki=recipe.train.steer_gain, wait=wait, ramp=ramp)


def gate_config(section: L0Drop, tokenizers: TokenizerPair) -> L0DropConfig:
    """The recipe's section as a config, with tokens replaced by their ids."""
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
    """A Marian Transformer with Xavier weights, which trains better from scratch than Marian's own initialisation.

    In deep models the weights of the l-th layer are divided by √l: a layer then adds little to its input, and gradients
    reach the lower layers through the normalisations in between.
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
    # sinusoidal tables are constants, but a checkpoint restores them as trainable parameters
    for module in model.modules():
        if "Sinusoidal" in type(module).__name__:
            module.requires_grad_(False)
    return model


def _check_kind(tokenizers: TokenizerPair, recipe: Recipe, folder: Path) -> None:
    if recipe.tokenizer.vocab_size is not None and tokenizers.shared != recipe.tokenizer.shared:
        kinds = {True: "one shared vocabulary", False: "one vocabulary per side"}
        raise ValueError(
            f"{folder}: has {kinds[tokenizers.shared]}, but the recipe trains {kinds[recipe.tokenizer.shared]} "
            f"(tokenizer.shared: {str(recipe.tokenizer.shared).lower()}); delete the folder to start again"
        )


def check_teacher(teacher: PreTrainedModel, recipe: Recipe, name: str, tokenizers: TokenizerPair) -> None:
    """Check that the run's ids mean the same tokens to the teacher, and that its positions suffice."""
    is_start = name == (recipe.model.init or recipe.model.pretrained)
    own = None if is_start else _tokenizers_of(name)
    for side in ("source", "target") if own is not None else ():
        # not fingerprints: a tokenizer that was saved again may differ in settings that change no id
        theirs, ours = (getattr(pair, side).get_vocab() for pair in (own, tokenizers))
        if theirs != ours:
            first = min(index for _, index in theirs.items() ^ ours.items())
            raise ValueError(
                f"train.teacher.model: {name} and {recipe.name} have different {side} vocabularies ({len(theirs)} and "
                f"{len(ours)} entries, different from id {first} on); a teacher needs the same tokenizer as the model"
            )
    check_vocabulary(teacher, tokenizers, f"train.teacher.model: {name}")
    _check_positions(teacher, recipe, name, scored=False)


def _tokenizers_of(name: str) -> TokenizerPair | None:
    """The tokenizers of a run folder, a model folder, or a name on the hub; None if it has none."""
    if (Path(name) / "tokenizer").is_dir():
        return load_tokenizers(name)
    folder = model_folder(name)
    path = str(folder) if folder.is_dir() else name
    missing = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    if cached_file(path, "tokenizer_config.json", **missing) is None:
        return None
    source, target = read_tokenizer(path), folder / "tokenizer_target"
    return TokenizerPair(source, read_tokenizer(target) if target.is_dir() else source)


def _check_distributions(teacher: PreTrainedModel, student: PreTrainedModel, name: str, start: str) -> None:
    theirs, ours = (len(model.get_output_embeddings().weight) for model in (teacher, student))
    if theirs != ours:
        raise ValueError(
            f"train.teacher.model: {name} has {theirs} output embeddings but {start} has {ours}; token-level "
            "distillation needs a teacher with the same vocabulary"
        )


def _check_positions(model: PreTrainedModel, recipe: Recipe, name: str, *, scored: bool = True) -> None:
    """scored: whether the model decodes for scoring."""
    lengths = [("data.max_target", recipe.data.max_target, "decoder")]
    if not recipe.is_audio:
        lengths.insert(0, ("data.max_source", recipe.data.max_source, "encoder"))
    if scored and recipe.evaluate.max_new_tokens is not None:
        lengths.append(("evaluate.max_new_tokens", recipe.evaluate.max_new_tokens, "decoder"))
    for key, length, side in lengths:
        positions = positions_of(model, side)
        if positions is not None and length > positions:
            raise ValueError(f"{key}: {length} is more than the {positions} positions of {name}'s {side}; lower it")


def _set_dropout(model: PreTrainedModel, rate: float) -> None:
    """Set every dropout rate of the model that is not 0.

    Modules copied their rate from the config when they were built; the config is changed for the next load.
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
