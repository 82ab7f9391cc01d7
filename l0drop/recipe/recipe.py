"""A whole recipe, and the checks between its sections."""

from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import Field

from l0drop.recipe import audio
from l0drop.recipe.checks import Faults, Index, Section, rule
from l0drop.recipe.data import CORPORA, Data, Tokenizer
from l0drop.recipe.model import L0Drop, Model
from l0drop.recipe.training import Evaluate, Train


class Recipe(Section):
    """A whole recipe: one experiment."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
    """The name of the run: its folder is runs/NAME."""
    task: Literal["translation", "summarization", "transcription"] = "translation"
    """The kind of task. `transcription` trains a Whisper on audio; the other two train in the same way."""
    seed: Annotated[Index, Field(lt=2**32)] = 1
    """The seed of initial weights, data order, dropout and gate noise."""
    about: str = ""
    """A description of the experiment and its data, for people."""
    data: Data
    """The text."""
    tokenizer: Tokenizer = Tokenizer()
    """The tokenizer."""
    model: Model
    """The model that training starts from."""
    l0drop: L0Drop | None = None
    """How the model drops encodings. Default: a baseline without gates."""
    train: Train
    """How to train."""
    evaluate: Evaluate = Evaluate()
    """How outputs are decoded and scored."""

    @rule
    def _references_need_targets(self) -> Faults:
        if self.train.targets != "references":
            return
        for name in ("train", "valid", "test"):
            corpus = getattr(self.data, name, None)
            if isinstance(corpus, CORPORA) and not corpus.has_targets:
                yield (
                    f"data.{name}.{corpus.target_key}",
                    "is missing; only train.targets: teacher works without targets",
                )

    @rule
    def _a_new_model_needs_a_vocabulary(self) -> Faults:
        tokenizer = self.tokenizer
        if self.model.transformer is not None and tokenizer.vocab_size is None and tokenizer.pretrained is None:
            yield "tokenizer.vocab_size", "is missing: a new transformer needs vocab_size or a pretrained tokenizer"

    @rule
    def _a_trained_model_has_a_vocabulary(self) -> Faults:
        if self.model.transformer is None and self.tokenizer.vocab_size is not None:
            yield "tokenizer.vocab_size", "a trained model has its own vocabulary; remove this key"

    @rule
    def _separate_vocabularies_need_both_sides(self) -> Faults:
        if not self.tokenizer.shared and not self.data.train.has_targets:
            yield "tokenizer.shared", "false needs target text, but data.train has none"

    @rule
    def _sequences_fit_the_positions(self) -> Faults:
        if self.model.transformer is None:
            return
        positions = self.model.transformer.positions
        for section, name in ("data", "max_source"), ("data", "max_target"), ("evaluate", "max_new_tokens"):
            length = getattr(getattr(self, section), name)
            if length is not None and length > positions:
                yield f"{section}.{name}", f"{length} is more than model.transformer.positions, {positions}"

    @rule
    def _a_new_model_is_no_teacher(self) -> Faults:
        if self.train.teacher is not None and self.train.teacher.model == "init" and self.model.transformer is not None:
            yield "train.teacher.model", "init is a copy of model.transformer, whose weights are random"

    @rule
    def _a_new_model_reaches_its_target(self) -> Faults:
        if self.model.transformer is not None and 2 * self.train.steer_over + self.train.fixed_gates >= 1:
            yield (
                "train.steer_over",
                f"{self.train.steer_over:g} of the steps without λ and the same again up to the target leave no steps",
            )

    @rule
    def _elastic_needs_a_learned_gate(self) -> Faults:
        if self.train.elastic and (self.l0drop is None or not self.l0drop.has_learned_gate):
            yield "train.elastic", "needs l0drop with a learned gate, which ranks the encodings"

    @rule
    def _freezing_leaves_a_gate(self) -> Faults:
        if self.train.freeze == "all_but_gate" and (self.l0drop is None or not self.l0drop.has_learned_gate):
            yield "train.freeze", "all_but_gate needs l0drop with a learned gate; there is nothing else to train"

    @rule
    def _a_new_model_is_not_frozen(self) -> Faults:
        if self.train.freeze == "all_but_gate" and self.model.transformer is not None:
            yield "train.freeze", "all_but_gate needs a trained model, but the weights of model.transformer are random"

    @rule
    def _the_encoder_is_trained(self) -> Faults:
        if self.train.freeze == "encoder" and self.model.transformer is not None:
            yield "train.freeze", "encoder needs a trained model, but the weights of model.transformer are random"

    @property
    def is_audio(self) -> bool:
        """Whether the model reads audio."""
        return self.task == "transcription"

    def for_text(self) -> "Recipe":
        """The recipe itself; ValueError if it is for audio, for commands that read text alone."""
        if self.is_audio:
            raise ValueError(f"{self.name}: is a run on audio, and this command is for text")
        return self

    @rule
    def _keys_fit_the_task(self) -> Faults:
        yield from audio.faults(self) if self.task == "transcription" else audio.text_faults(self)

    @rule
    def _starts_from_another_run(self) -> Faults:
        if self.model.init is not None and PurePath(self.model.init) == PurePath("runs", self.name):
            yield "model.init", f"{self.model.init} is the folder of this run itself; give the recipe another name"


Section.root = Recipe
