"""New models as a recipe describes them."""

import pytest
import torch

from l0drop.recipe import parse_recipe
from l0drop.training.assemble import new_transformer
from l0drop.training.run import prepare
from tests.training import tiny


@pytest.mark.parametrize(("layers", "asked", "scaled"), [(4, None, True), (4, False, False), (2, None, False)])
def test_deep_models_start_with_weights_scaled_by_depth(layers, asked, scaled, tmp_path):
    sizes = {"d_model": 32, "encoder_layers": layers, "decoder_layers": 1, "heads": 2, "ffn": 64, "positions": 64}
    sizes |= {} if asked is None else {"depth_scaled": asked}
    recipe = parse_recipe(tiny.recipe(tmp_path, model={"transformer": sizes}), "test")
    _, tokenizers, _ = prepare(recipe, tmp_path / "runs")
    torch.manual_seed(1)
    model = new_transformer(recipe, tokenizers)
    widest = (6 / (32 + 64)) ** 0.5  # of Xavier's uniform distribution
    for number, layer in enumerate(model.get_encoder().layers, 1):
        expected = widest / number**0.5 if scaled else widest
        assert float(layer.fc1.weight.detach().abs().max()) == pytest.approx(expected, rel=0.02)
    assert float(model.get_input_embeddings().weight.detach().std()) == pytest.approx(32**-0.5, rel=0.05)
