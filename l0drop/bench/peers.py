"""Systems that decode the same weights: our engine, Hugging Face's generate, CTranslate2.

| system                     | decodes                                       | cross-attention over         |
|----------------------------|-----------------------------------------------|------------------------------|
| engine-short, hf-short     | the gated model                               | the short memory             |
| engine-dense, hf-dense     | the gated model, the same function            | the full gated memory        |
| engine-int8-short, -dense  | the gated model, linear layers in int8        | the short, the full memory   |
| ct2-float32, ct2-int8      | the base model with the same weights, ungated | all encodings                |
| ct2-bfloat16, ct2-float16  | the same on a GPU                             | all encodings                |

CTranslate2 accepts neither gates nor a short memory. With every gate open the gated model is the base model, so its
tokens equal those of the other systems without gates (`ungated`), and its work equals that of a dense system: the same
weights, and the same number of rows to attend to.

All systems return the best hypothesis of each sentence, as token ids up to and including the end token.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from l0drop.decoding.engine import Engine
from l0drop.models.adopt import adopt_parameters
from l0drop.models.modeling import L0DropModel
from l0drop.models.sparsify import sparsify
from l0drop.runs.benchmark import Seconds

SYSTEMS = (
    "engine-short", "engine-dense", "engine-int8-short", "engine-int8-dense", "hf-short", "hf-dense", "ct2-float32",
    "ct2-int8",
)  # fmt: skip
GPU_SYSTEMS = (
    "engine-short", "engine-dense", "ct2-bfloat16", "ct2-float16", "ct2-float32", "hf-short", "hf-dense",
    "hf-dense-compiled",
)  # fmt: skip
"""On a GPU. hf-dense-compiled: with a static cache and the model's forward compiled."""
Tokens = list[list[int]]


@dataclass(frozen=True, eq=False)
class Batch:
    """Source sentences, padded on the right, and the hints that a rule's gate needs."""

    input_ids: Tensor
    attention_mask: Tensor
    hints: Mapping[str, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, row: int) -> "Batch":
        """One sentence, without its padding."""
        real = self.attention_mask[row].bool()
        hints = None if self.hints is None else {name: hint[row, real][None] for name, hint in self.hints.items()}
        return Batch(self.input_ids[row, real][None], self.attention_mask[row, real][None], hints)

    @property
    def positions(self) -> int:
        """Source positions of the longest sentence."""
        return self.input_ids.shape[1]

    @property
    def encoder_inputs(self) -> dict[str, Any]:
        """Arguments of the model's encoder."""
        inputs: dict[str, Any] = {"input_ids": self.input_ids, "attention_mask": self.attention_mask}
        return inputs if self.hints is None else {**inputs, "hints": self.hints}

    @cached_property
    def words(self) -> list[list[str]]:
        """The real tokens of each sentence by their names for CTranslate2; made once, before anything is timed."""
        pairs = zip(self.input_ids, self.attention_mask.bool(), strict=True)
        return [[str(token) for token in row[real].tolist()] for row, real in pairs]


class Peer:
    """One way to decode a model. `generation`: settings of generation_config, such as num_beams and max_new_tokens."""

    gated = True
    apart = True
    """Whether `decode` can be called without `encode`."""
    exact = True
    """Whether search and weights are those of generate, up to rounding errors."""
    searching: Seconds | None = None
    """Time spent in searches so far, for a system whose `decode` does more than that."""

    def __init__(self, model: L0DropModel, **generation: Any) -> None:
        self.model, self.generation = model, generation

    def encode(self, batch: Batch) -> Any:
        """The memory of a batch. It can be decoded only once, because generate expands it in place."""
        raise NotImplementedError

    def decode(self, memory: Any, **changes: Any) -> Tokens:
        """The best hypotheses; `changes` replace settings."""
        raise NotImplementedError

    def generate(self, batch: Batch, **changes: Any) -> Tokens:
        """Encode and decode."""
        return self.decode(self.encode(batch), **changes)

    def cross_bytes(self, batch: Batch) -> int | None:
        """Bytes of cross-attention's keys and values while decoding; None if the system does not expose them."""
        raise NotImplementedError

    def weight_bytes(self) -> int:
        """Bytes of the weights, each counted once, and of packed copies."""
        return sum({p.data_ptr(): p.nbytes for p in self.model.parameters()}.values())


class EnginePeer(Peer):
    """Our engine."""

    def __init__(self, model: L0DropModel, dense: bool, int8: bool = False, **generation: Any) -> None:
        super().__init__(model, **generation)
        self.dense, self.engine = dense, Engine(model, dtype="int8" if int8 else None)

    def encode(self, batch: Batch) -> Any:
        return self.engine.encode(batch.input_ids, batch.attention_mask, hints=batch.hints, dense=self.dense)

    def decode(self, memory: Any, **changes: Any) -> Tokens:
        return cut(self.engine.decode(memory, **{**self.generation, **changes}).sequences, self.model)

    def weight_bytes(self) -> int:
        return super().weight_bytes() + self.engine.copied_bytes

    def cross_bytes(self, batch: Batch) -> int | None:
        self.generate(batch, **BRIEF)
        return None if self.engine.through_generate else self.engine.memory_bytes


class HuggingFacePeer(Peer):
    """Hugging Face's generate, which repeats the memory for every beam.

    compiled: with a static cache, and with the model's forward compiled, which generate does only without beams.
    """

    def __init__(self, model: L0DropModel, dense: bool, compiled: bool = False, **generation: Any) -> None:
        super().__init__(model, **generation)
        self.dense = dense
        if compiled:
            self.model = copy.copy(model)
            self.model.forward = torch.compile(model.forward)  # type: ignore[method-assign]
            self.generation["cache_implementation"] = "static"

    @torch.no_grad()
    def encode(self, batch: Batch) -> Any:
        with self.model.dial(dense=self.dense):
            return self.model.get_encoder()(**on_device(batch.encoder_inputs, self.model.device))

    def decode(self, memory: Any, **changes: Any) -> Tokens:
        return cut(self._generate(memory, **changes), self.model)

    def cross_bytes(self, batch: Batch) -> int | None:
        output = self._generate(self.encode(batch), return_dict_in_generate=True, **BRIEF)
        layers = output.past_key_values.cross_attention_cache.layers
        return sum(tensor.nbytes for layer in layers for tensor in (layer.keys, layer.values))

    def _generate(self, memory: Any, **changes: Any) -> Any:
        return self.model.generate(encoder_outputs=memory, do_sample=False, **{**self.generation, **changes})


BRIEF = {
    "min_new_tokens": 2,
    "max_new_tokens": 2,
}  # the size of cross-attention's cache does not depend on the output length


class CTranslate2Peer(Peer):
    """CTranslate2 on the base model's weights, with a vocabulary in which a token's name is its id.

    converted: a folder that `convert` has written for this model; by default the model is converted here.
    """

    gated = False
    apart = False
    settings = frozenset({"num_beams", "max_new_tokens", "min_new_tokens", "length_penalty", "early_stopping"})

    def __init__(
        self,
        model: PreTrainedModel,
        compute_type: str,
        threads: int,
        device: str = "cpu",
        converted: Path | None = None,
        **generation: Any,
    ) -> None:
        self.generation = self._checked(model.generation_config, generation)
        self.exact = compute_type == "float32"
        library = ctranslate2_library()
        options = {"device": device, "compute_type": compute_type, "inter_threads": 1, "intra_threads": threads}
        with TemporaryDirectory() as name:
            folder = converted or Path(name)
            if converted is None:
                convert(model, folder, compute_type)
            self._weight_bytes = (folder / "model" / "model.bin").stat().st_size
            self._translator = library.Translator(str(folder / "model"), **options)
            self._encoder = library.Encoder(str(folder / "encoder"), **options)
        ids = model.generation_config
        self._ends = [ids.eos_token_id] if isinstance(ids.eos_token_id, int) else list(ids.eos_token_id)
        self._never = [[str(token) for token in words] for words in ids.bad_words_ids or []]

    def encode(self, batch: Batch) -> Any:
        """The encodings, from the encoder converted as a separate model, so that it can be timed by itself."""
        return self._encoder.forward_batch(batch.words).last_hidden_state

    def generate(self, batch: Batch, **changes: Any) -> Tokens:
        return self.translate(batch.words, **changes)

    def translate(self, words: list[list[str]], batch_tokens: int = 0, **changes: Any) -> Tokens:
        """The best outputs of sentences in one batch, or in CTranslate2's batches of at most `batch_tokens` tokens."""
        wanted = {**self.generation, **changes}
        results = self._translator.translate_batch(
            words,
            max_batch_size=batch_tokens,
            batch_type="tokens" if batch_tokens else "examples",
            beam_size=wanted["num_beams"],
            max_decoding_length=wanted["max_new_tokens"],
            min_decoding_length=wanted.get("min_new_tokens") or 0,
            length_penalty=wanted.get("length_penalty", 1.0),
            suppress_sequences=self._never or None,
            end_token=self._ends,
            return_end_token=True,  # it counts in the length that normalises scores, as in generate
            max_input_length=0,
        )
        return [[int(token) for token in result.hypotheses[0]] for result in results]

    def cross_bytes(self, batch: Batch) -> int | None:
        return None

    def weight_bytes(self) -> int:
        return self._weight_bytes

    def _checked(self, config: GenerationConfig, generation: dict[str, Any]) -> dict[str, Any]:
        unknown = generation.keys() - self.settings
        if unknown:
            raise ValueError(f"`{min(unknown)}`: CTranslate2 has no such setting here")
        if getattr(config, "forced_bos_token_id", None) is not None:
            raise ValueError(
                "forced_bos_token_id: not supported with CTranslate2; remove it from the generation config"
            )
        forced = generation.get("min_new_tokens") == generation["max_new_tokens"]
        if generation["num_beams"] > 1 and not forced:
            if generation.get("early_stopping") is not True:
                raise ValueError(
                    "`early_stopping`: CTranslate2 stops when `num_beams` hypotheses are complete; set it to True for "
                    "the same search"
                )
            if generation.get("length_penalty") == 0:
                raise ValueError("`length_penalty`: without one CTranslate2 stops at the first complete hypothesis")
        return generation


def build_peer(
    name: str, model: L0DropModel, threads: int = 1, converted: Path | None = None, **generation: Any
) -> Peer:
    """The system of that name (see `SYSTEMS`, `GPU_SYSTEMS`) on the model's device.

    The model's generation_config is `plain_generation`'s. converted: its folder for CTranslate2, if there is one.
    """
    if name not in (*SYSTEMS, *GPU_SYSTEMS):
        raise ValueError(f"`systems`: expected some of {', '.join(SYSTEMS)}, got {name!r}")
    kind, *_, which = name.split("-")
    if kind == "ct2":
        return CTranslate2Peer(model, which, threads, model.device.type, converted, **generation)
    if kind == "hf":
        return HuggingFacePeer(model, "dense" in name, which == "compiled", **generation)
    return EnginePeer(model, which == "dense", "int8" in name, **generation)


def on_device(inputs: Any, device: torch.device) -> Any:
    """A tensor, or a mapping of tensors, on a device."""
    if isinstance(inputs, Mapping):
        return {name: on_device(value, device) for name, value in inputs.items()}
    return inputs.to(device)


def plain_generation(model: PreTrainedModel) -> None:
    """Reduce a model's generation_config to special and forbidden tokens.

    Other settings (beams, a forced last token) are not supported by all systems.
    """
    names = (
        "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id",
        "bad_words_ids",
    )  # fmt: skip
    assert model.generation_config is not None
    model.generation_config = GenerationConfig(**{name: getattr(model.generation_config, name) for name in names})


def ungated(model: L0DropModel) -> L0DropModel:
    """The same weights with every gate open, as CTranslate2 decodes them."""
    return sparsify(base_of(model)).eval()


def cut(sequences_BT: Tensor, model: PreTrainedModel) -> Tokens:
    """Token ids after the start token, up to the first end token."""
    assert model.generation_config is not None
    ends = model.generation_config.eos_token_id
    last = {ends} if isinstance(ends, int) else set(ends or ())
    tokens = []
    for row in sequences_BT[:, 1:].tolist():
        length = next((index + 1 for index, token in enumerate(row) if token in last), len(row))
        tokens.append(row[:length])
    return tokens


@torch.no_grad()
def rescore(
    model: L0DropModel, inputs: Mapping[str, Any], tokens: list[int], length_penalty: float, prompt: list[int]
) -> float:
    """The log-probability of one output on the full gated memory, / length^length_penalty. It follows a prompt."""
    device = model.device
    decoder_input_ids = torch.tensor([[*prompt, *tokens[:-1]]], device=device)
    with model.dial(dense=True):
        logits_TV = model(**inputs, decoder_input_ids=decoder_input_ids).logits[0, len(prompt) - 1 :]
    chosen_T = logits_TV.log_softmax(-1).gather(-1, torch.tensor(tokens, device=device)[:, None])
    return float(chosen_T.sum()) / len(tokens) ** length_penalty


# --- CTranslate2 -----------------------------------------------------------------------------------------------------

# layer normalisation before each block, and after the embeddings; the configs of these families do not say
_NORMALIZES = {"marian": (False, False), "bart": (False, True), "mbart": (True, True), "pegasus": (True, False)}


def ctranslate2_library() -> Any:
    """The library; ValueError with the way to install it if it is missing."""
    try:
        import ctranslate2
    except ImportError:
        raise ValueError(
            "ctranslate2: not installed; pip install 'l0drop[bench]', or choose `systems` without ct2"
        ) from None
    return ctranslate2


@torch.no_grad()
def convert(model: PreTrainedModel, folder: Path, compute_type: str = "float32") -> None:
    """Write the base model for CTranslate2 into `folder`: `model`, and its encoder alone, `encoder`.

    CTranslate2's converter loads the weights. Marian uses BART's loader: Marian's own loader removes the padding token
    and starts decoding from a zero vector, which is right for Marian's public checkpoints only.
    """
    ctranslate2_library()
    from ctranslate2.converters import transformers as converters
    from ctranslate2.specs.transformer_spec import TransformerEncoderModelSpec

    base = base_of(model)
    family = base.config.model_type
    if family not in (*_NORMALIZES, "t5"):
        able = ", ".join((*_NORMALIZES, "t5"))
        raise ValueError(f"ct2: supports {able}, not {family}; choose `systems` without ct2-float32 and ct2-int8")
    if family != "t5":
        base.config.normalize_before, base.config.normalize_embedding = _NORMALIZES[family]
    loader = converters.T5Loader() if family == "t5" else converters.BartLoader()
    spec, other = (loader.get_model_spec(base) for _ in range(2))  # saving a spec breaks up its shared parts
    ids = model.generation_config
    assert ids is not None
    ends = ids.eos_token_id
    names = {
        "eos_token": ends if isinstance(ends, int) else ends[0],
        "bos_token": ids.decoder_start_token_id,
        "unk_token": ids.pad_token_id,  # required; no token is unknown here
        "decoder_start_token": ids.decoder_start_token_id,
    }
    for name, token in names.items():
        setattr(spec.config, name, str(token))
    spec.config.add_source_eos = False
    sources, targets = spec.encoder.embeddings[0].weight.shape[0], spec.decoder.embeddings.weight.shape[0]
    spec.register_source_vocabulary([str(token) for token in range(sources)])
    spec.register_target_vocabulary([str(token) for token in range(targets)])
    encoder = TransformerEncoderModelSpec(other.encoder)
    encoder.register_vocabulary([str(token) for token in range(sources)])
    encoder.config.unk_token = str(ids.pad_token_id)
    for name, part in (("model", spec), ("encoder", encoder)):
        part.validate()
        part.optimize(quantization=None if compute_type == "float32" else compute_type)
        (folder / name).mkdir()
        part.save(str(folder / name))


def base_of(model: PreTrainedModel) -> Any:
    """The model without its gate: the same Parameter objects, a separate config."""
    if isinstance(model, L0DropModel):
        return adopt_parameters(model, model.base_class, model.config.to_base())
    return adopt_parameters(model, type(model), copy.deepcopy(model.config))
