"""From texts to results: compared with generate and dense attention, for all kinds of tokenizers and folders."""

import shutil
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers as hf
from rich.console import Console

import l0drop
from l0drop import Gate, Gates, load, register_gate
from l0drop.decoding.folder import fingerprint
from l0drop.decoding.sources import MIN_CPU_TOKENS, batches
from l0drop.decoding.text import MAX_NEW_TOKENS, OutOfMemoryError, TextModel
from l0drop.recipe import parse_recipe
from l0drop.training.run import train
from tests.decoding import folders
from tests.models import zoo
from tests.training import tiny

TEXTS = ["the dog sees a cat .", "", "a river knows the stone the bird .", " \t ", "the road ."]
SETTINGS = {"num_beams": 2, "max_new_tokens": 12}


@pytest.fixture(scope="module")
def model(sparse_folder: Path) -> TextModel:
    return load(sparse_folder, "cpu", "float64")


# --- results -----------------------------------------------------------------------------------------------------


def test_results_equal_those_of_generate(model: TextModel, sparse_folder: Path) -> None:
    results = model.generate(TEXTS, **SETTINGS)
    plain = hf.AutoModelForSeq2SeqLM.from_pretrained(sparse_folder, dtype=torch.float64)
    tokenizer = hf.AutoTokenizer.from_pretrained(sparse_folder)
    for text, result in zip(TEXTS, results, strict=True):
        if not text.strip():
            assert (result.text, result.score, result.kept) == ("", None, ())
            continue
        inputs = tokenizer([text], return_tensors="pt")
        output = plain.generate(**inputs, **SETTINGS, return_dict_in_generate=True, output_scores=True)
        assert result.text == tokenizer.batch_decode(output.sequences, skip_special_tokens=True)[0]
        assert result.score == pytest.approx(float(output.sequences_scores[0]), abs=1e-9)
        (explanation,) = plain.explain(**inputs)
        tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
        assert [token.text for token in result.kept] == [tokens[i] for i in explanation.kept]
        assert result.source_tokens == len(tokens)
        assert 0 < len(result.kept) < len(tokens), "the test needs kept and dropped tokens"
        assert result.output_tokens == int((output.sequences[0, 1:] != tokenizer.pad_token_id).sum())


def test_a_source_may_have_its_own_dial(model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a batch with other dials, and when that batch is halved."""
    texts = [TEXTS[0], TEXTS[2], TEXTS[4], TEXTS[2]]
    dials: list[dict[str, Any]] = [{"keep": 0.2}, {"dense": True}, {}, {"max_memory": 3}]
    settings = model.settings(None, SETTINGS)
    sources = [replace(source, dial=dial) for source, dial in zip(model.encode(texts), dials, strict=True)]
    alone = [model.generate([text], **SETTINGS, **dial)[0] for text, dial in zip(texts, dials, strict=True)]
    assert [result.text for result in model.decode(sources, settings)] == [result.text for result in alone]
    decode_batch = model._decode

    def small(batch: Any, *others: Any) -> Any:
        if len(batch) > 1:
            raise MemoryError
        return decode_batch(batch, *others)

    monkeypatch.setattr(model, "_decode", small)
    assert [len(result.kept) for result in model.decode(sources, settings)] == [len(result.kept) for result in alone]


def test_offsets_index_the_text(model: TextModel) -> None:
    text = "  the  dog sees\u2028a cat ."
    explained = model.explain(text, **SETTINGS)
    words = "".join(text[token.start : token.end] for token in explained.source if token.start is not None)
    assert "".join(words.split()) == "thedogseesacat.", "no character is missing or repeated"
    assert not any(
        text[token.start : token.end] != text[token.start : token.end].strip() for token in explained.source[:3]
    )
    assert (explained.source[-1].text, explained.source[-1].start, explained.source[-1].end) == ("</s>", None, None)


def test_several_outputs_per_text(model: TextModel) -> None:
    (result,) = model.generate(TEXTS[:1], num_beams=4, num_return_sequences=3, max_new_tokens=8)
    assert len(result.alternatives) == 2
    scores = [result.score, *(other.score for other in result.alternatives)]
    assert scores == sorted(scores, reverse=True)
    assert result.text == model.generate(TEXTS[:1], num_beams=4, max_new_tokens=8)[0].text
    many = model.generate(TEXTS, num_beams=4, num_return_sequences=3, max_new_tokens=8)
    assert [other.text for other in many[0].alternatives] == [other.text for other in result.alternatives]


def test_a_text_does_not_depend_on_its_batch(model: TextModel) -> None:
    texts = [" ".join(["the dog sees a cat"] * (1 + n % 5)) for n in range(30)]
    together = model.generate(texts, batch_tokens=100_000, **SETTINGS)
    alone = model.generate(texts, batch_tokens=1, **SETTINGS)
    assert [result.text for result in together] == [result.text for result in alone]
    assert [result.kept for result in together] == [result.kept for result in alone]


def test_short_sentences_count_as_the_minimum_on_a_cpu(model: TextModel) -> None:
    sources = model.encode(["the dog ."] * 10)
    assert [len(batch) for batch in model.batches(sources, 3 * MIN_CPU_TOKENS)] == [3, 3, 3, 1]
    assert [len(batch) for batch in batches(sources, 3 * MIN_CPU_TOKENS)] == [10]


def test_the_dial_reaches_the_engine(model: TextModel) -> None:
    (whole,) = model.generate(TEXTS[2:3], keep=1.0, **SETTINGS)
    (one,) = model.generate(TEXTS[2:3], keep=0.01, **SETTINGS)
    assert (len(whole.kept), len(one.kept)) == (whole.source_tokens, 1)
    dense, short = model.generate(TEXTS[:1], dense=True, **SETTINGS), model.generate(TEXTS[:1], **SETTINGS)
    assert dense[0].text == short[0].text
    with pytest.raises(ValueError, match="no_such_setting"):
        model.generate(TEXTS, no_such_setting=1)


def test_long_texts_are_cut_with_a_warning_and_keep_eos(model: TextModel) -> None:
    long = "the dog " * 500
    with pytest.warns(UserWarning, match=r"1 of 2 texts .* the first is texts\[1\], cut to 64 tokens"):
        short, cut = model.generate(["the dog", long], **SETTINGS)
    assert (short.cut, cut.source_tokens) == (0, 64)
    (source,) = model.encode([long])
    assert source.ids[-1] == model.tokenizers.source.eos_token_id
    assert source.cut + 64 == len(model.tokenizers.source(long)["input_ids"])
    assert source.spans[62][1] <= len(long)
    (shorter,) = model.encode([long], max_source=5)
    assert list(shorter.ids) == [*source.ids[:4], source.ids[-1]]
    for wrong, message in ((1, "leaves no room"), (65, "64 positions")):
        with pytest.raises(ValueError, match=f"`max_source`: {wrong}.*{message}"):
            model.encode(["the dog"], max_source=wrong)


def test_a_single_text_instead_of_a_list(model: TextModel) -> None:
    with pytest.raises(ValueError, match="texts: expected a list"):
        model.generate("the dog sees a cat .")


def test_errors_in_texts_give_their_index(model: TextModel) -> None:
    texts: list[Any] = ["the dog", "a cat", None]
    with pytest.raises(TypeError, match=r"^texts\[2\]: expected a text, got NoneType$"):
        model.generate(texts)
    with pytest.raises(TypeError, match=r"^texts\[0\]: expected a text, got int$"):
        model.generate([5, "the dog"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"^texts\[1\]: character 2 is half of a surrogate pair \(U\+D800\)"):
        model.generate(["the dog", "a \ud800"])
    for text, kind in ((None, "NoneType"), (b"the dog", "bytes")):
        with pytest.raises(TypeError, match=rf"^text: expected a text, got {kind}$"):
            model.explain(text)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="^text: explain takes one text, not a list"):
        model.explain(["the dog"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="^text: character 0 is half of a surrogate pair"):
        model.explain("\udfff")


def test_inputs_of_the_engine_are_not_settings(model: TextModel) -> None:
    with pytest.raises(ValueError, match="^`attention_mask`: not a generation setting"):
        model.generate(["the dog"], attention_mask=torch.ones(1, 3))


@pytest.mark.parametrize(
    ("wrong", "right"), [("num_beam", "num_beams"), ("taget_lang", "target_lang"), ("max_memroy", "max_memory")]
)
def test_a_misspelled_setting_gets_a_suggestion(model: TextModel, wrong: str, right: str) -> None:
    for method, argument in ((model.generate, ["the dog"]), (model.explain, "the dog")):
        with pytest.raises(ValueError, match=rf"^`{wrong}`: not a generation setting; did you mean `{right}`\?$"):
            method(argument, **{wrong: 4})  # type: ignore[operator]


def test_repr_describes_the_model(baseline: Path, tmp_path: Path, sparse_folder: Path) -> None:
    plain = repr(load(baseline))
    assert (
        plain
        == f"TextModel('{baseline}', MarianMTModel, model_type='marian', gating=None, device='cpu', dtype='float32')"
    )
    folder = folders.sparse(baseline, tmp_path / "mask", gating="mask", target_sparsity=0.4)
    assert repr(load(folder, dtype="bfloat16")) == (
        f"TextModel('{folder}', L0DropMarianMTModel, model_type='l0drop_marian', gating='mask', target_sparsity=0.4, "
        "device='cpu', dtype='bfloat16')"
    )
    off = load(sparse_folder)
    off.model.config.l0drop.enabled = False
    assert "gating='zero' (disabled)" in repr(off)


# --- explanations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gating", ["zero", "mask", "weight", "mean"])
def test_attention_equals_that_of_the_dense_memory(baseline: Path, tmp_path: Path, gating: str) -> None:
    folder = folders.sparse(baseline, tmp_path / gating, gating=gating)
    explained = load(folder, "cpu", "float64").explain(TEXTS[2], **SETTINGS)
    model = hf.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer([TEXTS[2]], return_tensors="pt")
    sequence = model.generate(**inputs, **SETTINGS)
    assert explained.text == tokenizer.decode(sequence[0], skip_special_tokens=True)
    assert explained.output == tokenizer.convert_ids_to_tokens(sequence[0, 1:])
    with model.dial(dense=True), torch.no_grad():
        dense = model(**inputs, decoder_input_ids=sequence[:, :-1], output_attentions=True)
    wanted = torch.cat(dense.cross_attentions)
    kept = torch.zeros(inputs["input_ids"].shape[1], dtype=torch.bool)
    kept[explained.kept] = True
    assert 0 < int(kept.sum()) < len(kept)
    torch.testing.assert_close(explained.attentions[..., kept], wanted[..., kept], atol=1e-10, rtol=0)
    assert not explained.attentions[..., ~kept].any()
    torch.testing.assert_close(explained.zero_row, wanted[..., ~kept].sum(-1), atol=1e-10, rtol=0)
    total = explained.attention.sum(1) + explained.zero_row.mean((0, 1))
    torch.testing.assert_close(total, torch.ones_like(total))
    torch.testing.assert_close(explained.gates, dense.gates.values[0])
    assert explained.log_alpha is not None
    assert explained.sparsity == pytest.approx(float(dense.sparsity))


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_every_family_loads_generates_and_explains(family: str, baseline: Path, tmp_path: Path) -> None:
    tokenizer = hf.AutoTokenizer.from_pretrained(baseline / "model")
    folder = folders.saved(folders.resized(family, tokenizer), tokenizer, tmp_path / family)
    model = load(folder)
    assert not model.is_gated
    assert len(model.generate(TEXTS, **SETTINGS)) == len(TEXTS)
    explained = model.explain(TEXTS[0], **SETTINGS)
    assert explained.gates is None
    assert explained.kept == list(range(len(explained.source)))
    assert explained.attention.shape == (len(explained.output), len(explained.source))
    torch.testing.assert_close(explained.attention.sum(1), torch.ones(len(explained.output)))
    with pytest.raises(ValueError, match="keep: this model has no gates"):
        model.generate(TEXTS, keep=0.5)


def test_explain_refuses_a_blank_text(model: TextModel) -> None:
    with pytest.raises(ValueError, match="text: is blank"):
        model.explain(" ")


def test_explain_cuts_a_long_text_with_a_warning(model: TextModel) -> None:
    with pytest.warns(UserWarning, match="cut to 64 tokens"):
        explained = model.explain("the dog " * 500, **SETTINGS)
    assert len(explained.source) == 64
    assert explained.cut == len(model.tokenizers.source("the dog " * 500)["input_ids"]) - 64


# --- memory ------------------------------------------------------------------------------------------------------


def _cpu_error() -> None:
    torch.empty(1 << 60)


def _cuda_error() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def _python_error() -> None:
    raise MemoryError


@pytest.mark.parametrize("error", [_cpu_error, _cuda_error, _python_error])
def test_a_batch_that_does_not_fit_is_halved(model: TextModel, error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"the {noun} sees a {other} ." for noun in tiny.NOUNS for other in tiny.NOUNS]
    wanted = model.generate(texts, **SETTINGS)
    real, rows = model.engine.generate, []

    def small(inputs: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        rows.append(len(inputs))
        if len(inputs) > 5:
            error()
        return real(inputs, *args, **kwargs)

    monkeypatch.setattr(model.engine, "generate", small)
    told: list[int] = []
    sources = model.encode(texts)
    results = model.decode(sources, model.settings(None, SETTINGS), lambda batch: told.append(len(batch)))
    assert [result.text for result in results] == [result.text for result in wanted]
    assert told[0] == 64
    assert max(count for count in rows if count <= 5) <= 5
    assert sum(count for count in rows if count <= 5) == 64


def test_a_single_text_that_does_not_fit_is_reported(model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    real = model.engine.generate

    def small(inputs: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if inputs.shape[1] > 20:
            _cpu_error()
        return real(inputs, *args, **kwargs)

    monkeypatch.setattr(model.engine, "generate", small)
    with pytest.raises(OutOfMemoryError, match=r"texts\[3\]: out of memory with this text alone \(\d\d tokens\)"):
        model.generate([*TEXTS[:3], "the dog " * 12], **SETTINGS)


def test_other_errors_are_not_mistaken_for_a_lack_of_memory(model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(model.engine, "generate", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        model.generate(TEXTS)


# --- folders -----------------------------------------------------------------------------------------------------


def test_a_run_uses_the_settings_of_its_recipe(baseline: Path) -> None:
    run, inner = load(baseline), load(baseline / "model")
    for loaded in (run, inner):
        plain = {"do_sample": False, "early_stopping": False}
        assert loaded.settings(None, {}) == {"num_beams": 2, "length_penalty": 0.6, "max_new_tokens": 16, **plain}
        assert loaded.settings(None, {"num_beams": 1, "max_length": 9}) == {
            "num_beams": 1, "length_penalty": 0.6, "max_length": 9, **plain,
        }  # fmt: skip
        assert loaded.max_source == 32, "the recipe's, not the encoder's 64 positions"
        (source,) = loaded.encode(["the dog " * 40])
        assert len(source.ids) == 32
        (longer,) = loaded.encode(["the dog " * 40], max_source=64)
        assert len(longer.ids) == 64
        loaded.tokenizers.source.model_max_length = 8
        assert loaded.max_source == 32, "training ignores the tokenizer's limit too"
    texts = Path(baseline.parents[1] / "test.source").read_text().splitlines()
    assert [r.text for r in run.generate(texts)] == [r.text for r in inner.generate(texts)]


def test_the_default_output_length_is_not_that_of_generate(sparse_folder: Path) -> None:
    assert load(sparse_folder).settings(None, {}) == {"max_new_tokens": min(MAX_NEW_TOKENS, 64)}


def test_a_recipe_prefix_is_put_before_every_text(tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path, train={"steps": 1})
    values["data"]["source_prefix"] = "the dog "
    train(parse_recipe(values, "test"), tmp_path / "runs", Console(quiet=True))
    model = load(tmp_path / "runs" / "tiny")
    (source,) = model.encode(["sees a cat"])
    assert list(source.ids) == model.tokenizers.source("the dog sees a cat")["input_ids"]
    (bare,) = model.encode(["sees a cat"], prefix="")
    assert list(bare.ids) == model.tokenizers.source("sees a cat")["input_ids"]
    spans = [span for span in source.spans if span is not None]
    assert "".join("sees a cat"[start:end] for start, end in spans).replace(" ", "") == "seesacat"


def test_separate_vocabularies_load_the_target_tokenizer(tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path, tokenizer={"vocab_size": 60, "shared": False}, train={"steps": 1})
    train(parse_recipe(values, "test"), tmp_path / "runs", Console(quiet=True))
    run = tmp_path / "runs" / "tiny"
    alone = shutil.copytree(run / "model", tmp_path / "alone")
    model_folders = (run, run / "model", alone)
    results = [load(folder).generate(TEXTS, length_penalty=1.0, **SETTINGS) for folder in model_folders]
    assert results[0] == results[1] == results[2]
    target = load(run).tokenizers.target
    assert target.get_vocab() != load(run).tokenizers.source.get_vocab()
    assert load(alone).tokenizers.target.get_vocab() == target.get_vocab()
    shutil.rmtree(alone / "tokenizer_target")
    with pytest.raises(ValueError, match="the model folder has no tokenizer_target/"):
        load(alone)


def test_errors_of_load(baseline: Path, sparse_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="empty: no model here, expected config.json"):
        load(tmp_path / "empty")
    with pytest.raises(ValueError, match=f"there are models in {baseline}"):
        load(baseline.parent)
    with pytest.raises(ValueError, match="file: is a file"):
        load(tmp_path / "file")
    with pytest.raises(ValueError, match="nowhere: there is no such folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="`dtype`: expected one of float32"):
        load(sparse_folder, dtype="int7")
    with pytest.raises(ValueError, match="`device`: nonsense cannot be used"):
        load(sparse_folder, device="nonsense")
    decoder = hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20))
    decoder.save_pretrained(tmp_path / "decoder")
    with pytest.raises(ValueError, match="decoder: is not an encoder-decoder"):
        load(tmp_path / "decoder")
    torn = shutil.copytree(sparse_folder, tmp_path / "torn")
    (torn / "model.safetensors").write_bytes((torn / "model.safetensors").read_bytes()[:100])
    with pytest.raises(ValueError, match="torn: the weights are damaged"):
        load(torn)
    (torn / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="torn: the model cannot be read .*model.safetensors"):
        load(torn)
    mute = shutil.copytree(sparse_folder, tmp_path / "mute")
    for file in mute.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ValueError, match="mute: no tokenizer"):
        load(mute)


@pytest.mark.parametrize("name", ["runs/tpyo", "./tpyo", "../tpyo", "/tpyo", "a/b/c", "~/tpyo", "tpyo/"])
def test_a_mistyped_folder_is_not_looked_up_on_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "runs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url: pytest.fail(f"asked for {url}"))
    monkeypatch.setattr(hf.AutoModelForSeq2SeqLM, "from_pretrained", lambda *_, **__: pytest.fail("asked the hub"))
    with pytest.raises(ValueError, match=f"^{name}: there is no such folder$"):
        load(name)


def test_a_mistyped_folder_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "sparse").mkdir()
    with pytest.raises(ValueError, match=f"sprase: there is no such folder; did you mean {tmp_path / 'sparse'}\\?$"):
        load(tmp_path / "sprase")


def hub_error(kind: type[Exception]) -> Exception:
    """An error of the hub, made without a response."""
    return kind.__new__(kind, "from the hub\nand more")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ConnectionError("Name or service not known\nand more"),
            r"the .* hub cannot be reached \(Name or service not k",
        ),
        (hub_error(huggingface_hub.errors.RepositoryNotFoundError), "the Hugging Face hub has no model of this name"),
        (hub_error(huggingface_hub.errors.GatedRepoError), "access to this model .* must be requested"),
    ],
    ids=["unreachable", "missing", "gated"],
)
def test_the_hub_is_asked_once(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def metadata(url: str) -> Any:
        asked.append(url)
        raise error

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", metadata)
    with pytest.raises(ValueError, match=f"^nobody/has-this: there is no such folder, and {message}") as raised:
        load("nobody/has-this")
    assert asked == ["https://huggingface.co/nobody/has-this/resolve/main/config.json"]
    assert "\n" not in str(raised.value)


def test_an_invalid_name_on_the_hub() -> None:
    with pytest.raises(ValueError, match="^no--such..name: there is no such folder, and this is not a valid name"):
        load("no--such..name")


def test_a_model_on_the_hub_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, **kwargs: Any) -> Any:
        raise OSError(f"{name} has no weights\nand more")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url: None)
    monkeypatch.setattr(hf.PreTrainedConfig, "get_config_dict", lambda name: ({"model_type": "marian"}, {}))
    monkeypatch.setattr(hf.AutoModelForSeq2SeqLM, "from_pretrained", broken)
    message = r"^some/model: loading it from the Hugging Face hub failed \(some/model has no weights\)$"
    with pytest.raises(ValueError, match=message):
        load("some/model")


def test_the_fingerprint_depends_on_weights_and_settings(sparse_folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sparse_folder, tmp_path / "copy")
    model = load(sparse_folder)
    assert fingerprint(str(sparse_folder), model.model) == fingerprint(str(copy), model.model)
    config = (copy / "generation_config.json").read_text()
    (copy / "generation_config.json").write_text(config.replace("{", '{"num_beams": 3,', 1))
    assert fingerprint(str(sparse_folder), model.model) != fingerprint(str(copy), model.model)


@pytest.mark.usefixtures("strict_attention")
def test_dtypes(sparse_folder: Path) -> None:
    assert load(sparse_folder).model.dtype == torch.float32
    low = load(sparse_folder, dtype="bfloat16")
    assert low.model.dtype == torch.bfloat16
    assert len(low.generate(TEXTS, **SETTINGS)) == len(TEXTS)
    low.explain(TEXTS[0], **SETTINGS)


# --- rules -------------------------------------------------------------------------------------------------------


def test_int8_is_close_to_float32(sparse_folder: Path) -> None:
    rounded, plain = load(sparse_folder, "cpu", "int8"), load(sparse_folder, "cpu", "float32")
    assert (rounded.dtype, plain.dtype) == ("int8", "float32")
    assert rounded.engine.linears.startswith("int8-")
    settings = {**SETTINGS, "num_beams": 4}
    ours, theirs = rounded.generate(TEXTS, **settings), plain.generate(TEXTS, **settings)
    assert [bool(result.text) for result in ours] == [bool(result.text) for result in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.score == (None if other.score is None else pytest.approx(other.score, rel=0.15))
    with pytest.raises(ValueError, match="^`dtype`: expected one of float32, bfloat16, float16, float64, int8"):
        load(sparse_folder, "cpu", "int4")


def test_a_rule_gets_its_hints_from_the_text(baseline: Path, tmp_path: Path) -> None:
    from l0drop.data.hints import TextAnnotator

    folder = folders.sparse(baseline, tmp_path / "pos", gate="pos")
    with pytest.raises(
        ValueError, match=r"pos: its gate needs hints \(label\), but the model folder has no hints.json"
    ):
        load(folder)
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    TextAnnotator(("label",), tokenizer).save(folder)
    model = load(folder)
    (result,) = model.generate(["the dog sees a cat ."], **SETTINGS)
    kept = "".join("the dog sees a cat ."[t.start : t.end] for t in result.kept if t.start is not None)
    assert "dog" in kept
    assert "the" not in kept
    assert model.explain("the dog sees a cat .", **SETTINGS).log_alpha is None
    long = "the dog sees a cat . " * 30
    with pytest.warns(UserWarning, match="cut"):
        model.generate([long, "the dog"], **SETTINGS)


@register_gate("test-text-even")
class Even(Gate):
    """Keeps tokens of even id."""

    def __init__(self) -> None:
        super().__init__()

    def forward(self, encodings, mask, input_ids=None, hints=None):  # type: ignore[no-untyped-def]
        return Gates(((input_ids % 2 == 0) & mask).float())


def test_a_custom_gate(baseline: Path, tmp_path: Path) -> None:
    model = load(folders.sparse(baseline, tmp_path / "even", gate="test-text-even"))
    (result,) = model.generate(TEXTS[:1], **SETTINGS)
    ids = model.tokenizers.source.convert_tokens_to_ids([token.text for token in result.kept])
    assert ids
    assert all(i % 2 == 0 for i in ids)


# --- other tokenizers --------------------------------------------------------------------------------------------


def test_the_slow_marian_tokenizer(tmp_path: Path) -> None:
    tokenizer = folders.marian_tokenizer(tmp_path)
    folder = folders.saved(folders.resized("marian", tokenizer), tokenizer, tmp_path / "marian")
    model = load(folder)
    assert not model.tokenizers.source.is_fast
    text = "the  ﬁne dog № 漢 sees U\u0308nder </s> cats ."
    assert len(model.generate([text, "", "the dog"], **SETTINGS)) == 3
    explained = model.explain(text, **SETTINGS)
    for token in explained.source:
        if token.start is None or token.text == "<unk>":
            continue
        surface = unicodedata.normalize("NFKC", text[token.start : token.end])
        assert token.text.replace("▁", "") in surface, token
    found = {token.text.replace("▁", ""): text[token.start : token.end] for token in explained.source if token.start}
    assert found["dog"] == "dog"
    assert "漢" in {text[t.start : t.end] for t in explained.source if t.text == "<unk>" and t.start is not None}


def test_byt5_has_one_token_per_byte(tmp_path: Path) -> None:
    tokenizer = hf.ByT5Tokenizer()
    folder = folders.saved(folders.resized("t5", tokenizer), tokenizer, tmp_path / "byt5")
    model = load(folder)
    (source,) = model.encode(["aé漢"])
    assert list(source.spans) == [(0, 1), (1, 2), (1, 2), (2, 3), (2, 3), (2, 3), None]
    assert model.max_source == 1024
    (cut,) = model.encode(["a" * 2000])
    assert (len(cut.ids), cut.cut) == (1024, 2001 - 1024)


def test_nllb_writes_the_target_language(tmp_path: Path) -> None:
    letters = {c: i for i, c in enumerate(["<s>", "<pad>", "</s>", "<unk>", *"▁abcdefghijklmnopqrstuvwxyz."])}
    tokenizer = hf.NllbTokenizer(vocab=letters, merges=[])
    model = load(folders.saved(folders.resized("m2m100", tokenizer), tokenizer, tmp_path / "nllb"))
    german, french = tokenizer.convert_tokens_to_ids(["deu_Latn", "fra_Latn"])
    (source,) = model.encode(["the dog"], source_lang="deu_Latn")
    assert source.ids[0] == german
    assert source.spans[0] is None
    assert model.encode(["the dog"])[0].ids[0] == tokenizer.convert_tokens_to_ids("eng_Latn"), "the default is restored"
    explained = model.explain("the dog", source_lang="deu_Latn", target_lang="fra_Latn", **SETTINGS)
    assert explained.output[0] == "fra_Latn"
    assert "fra_Latn" not in explained.text
    assert model.settings("fra_Latn", {})["forced_bos_token_id"] == french
    with pytest.raises(ValueError, match="`target_lang`: .* several languages; choose one"):
        model.generate(["the dog"], source_lang="deu_Latn")
    for setting in ("source_lang", "target_lang"):
        for wrong in ("xxx_Latn", "a", "</s>"):
            with pytest.raises(ValueError, match=f"`{setting}`: '{wrong}' is not a language of this model; it has 20"):
                model.generate(["the dog"], **{"target_lang": "fra_Latn", setting: wrong})


def test_mbart_50_writes_the_target_language(tmp_path: Path) -> None:
    tokenizer = hf.MBart50Tokenizer()
    model = load(folders.saved(folders.resized("mbart", tokenizer), tokenizer, tmp_path / "mbart"))
    explained = model.explain("x", source_lang="de_DE", target_lang="fr_XX", **SETTINGS)
    assert explained.output[0] == "fr_XX"
    assert explained.source[0].text == "de_DE"
    romanian = tokenizer.convert_tokens_to_ids("ro_RO")
    assert model.settings("ro_RO", {})["forced_bos_token_id"] == romanian
    model.model.generation_config.decoder_start_token_id = tokenizer.convert_tokens_to_ids("de_DE")
    assert model.settings("ro_RO", {}) == {**model.settings("de_DE", {}), "decoder_start_token_id": romanian}
    assert model.explain("x", target_lang="ro_RO", **SETTINGS).output[:1] != ["ro_RO"], (
        "the language is the start token and not generated"
    )


def test_the_first_mbart_starts_with_the_target_language(tmp_path: Path) -> None:
    tokenizer = hf.MBartTokenizer()
    model = load(folders.saved(folders.resized("mbart", tokenizer), tokenizer, tmp_path / "mbart"))
    german, romanian = tokenizer.convert_tokens_to_ids(["de_DE", "ro_RO"])
    own = model.model.generation_config
    for start in (None, german):
        own.decoder_start_token_id = start
        assert model.settings("ro_RO", {})["decoder_start_token_id"] == romanian
        assert "forced_bos_token_id" not in model.settings("ro_RO", {})
    own.decoder_start_token_id = tokenizer.bos_token_id
    assert not {"decoder_start_token_id", "forced_bos_token_id"} & model.settings("ro_RO", {}).keys()
    assert model.settings(None, {"decoder_start_token_id": german})["decoder_start_token_id"] == german
    with pytest.raises(ValueError, match="`target_lang` and `decoder_start_token_id`: .* give one of them"):
        model.settings("ro_RO", {"decoder_start_token_id": german})


def test_a_model_with_a_fixed_start_language_needs_no_target_lang(tmp_path: Path) -> None:
    tokenizer = hf.MBart50Tokenizer()
    romanian = tokenizer.convert_tokens_to_ids("ro_RO")
    model = folders.resized("mbart", tokenizer, decoder_start_token_id=romanian)
    model.generation_config.decoder_start_token_id = romanian
    assert len(load(folders.saved(model, tokenizer, tmp_path / "mbart")).generate(["x"], **SETTINGS)) == 1


def test_languages_of_a_monolingual_model_are_an_error(model: TextModel) -> None:
    with pytest.raises(ValueError, match="`source_lang`: .* knows no languages"):
        model.generate(TEXTS, source_lang="deu_Latn")
    with pytest.raises(ValueError, match="`target_lang`: .* knows no languages"):
        model.generate(TEXTS, target_lang="deu_Latn")


def test_load_is_public() -> None:
    assert l0drop.load is load
