"""From a recipe to a model and its teacher."""

import copy
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import MarianConfig, MarianMTModel, PreTrainedModel
from transformers.utils import cached_file

from l0drop.data.tokenizer import TokenizerPair, load_tokenizers, read_tokenizer
from l0drop.decoding.folder import check_exists, check_vocabulary, load_model
from l0drop.models.config import L0DropConfig
from l0drop.models.families import family_of, positions_of
from l0drop.models.modeling import L0DropModel
from l0drop.models.sparsify import sparsify
from l0drop.recipe import L0Drop, Recipe


def teacher_name(recipe: Recipe) -> str:
    """The folder or the name of the recipe's teacher."""
    assert recipe.train.teacher is not None
    own = recipe.train.teacher.model
    name = recipe.model.init or recipe.model.pretrained if own == "init" else own
    assert name is not None
    return name


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
    """Keep the parameters fixed that the recipe says; gates and shorteners are always trained."""
    if freeze == "nothing":
        return
    parts = (model.gate, model.inner_gates, model.shortener) if isinstance(model, L0DropModel) else ()
    gates = {id(parameter) for part in parts if part is not None for parameter in part.parameters()}
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
    if section.shortener is None and not section.has_learned_gate and values["lambda_"] is None:
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
