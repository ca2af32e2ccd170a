"""Adapters in the format of peft: what we write, peft reads, and the other way round, with the same logits."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from lm.exchange import from_hugging_face, named_format
from lm.exchange.adapters import fold_peft, to_peft
from lm.lora import LoraLinear, add_lora
from lm.lora_config import LoraConfig
from lm.model import LanguageModel
from tests.pipelines.exchange_cases import AUTO, IDS, SHAPES

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

FUSED = {"gpt2": "transformer.h.0.attn.c_attn", "gpt_neox": "gpt_neox.layers.0.attention.query_key_value"}


def peer_of(kind):
    """Return a small random model of `transformers`, the same in every call."""
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(kind, vocab_size=61, **SHAPES[kind], **IDS)
    peer = AUTO[kind].from_config(config).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return peer


def ours_of(peer):
    """Return our model of a model of `transformers`."""
    imported = from_hugging_face(peer.config.to_dict(), peer.state_dict())
    model = LanguageModel(imported.config, seed=None)
    model.load_state_dict(imported.weights)
    return model.eval()


@torch.no_grad()
def logits(model):
    ids = torch.randint(2, 61, (2, 20), generator=torch.Generator().manual_seed(2))
    if isinstance(model, LanguageModel):
        return model.logits(model(ids, ids.flip(0) if model.encoder and model.decoder else None))
    if model.config.is_encoder_decoder:
        return model(input_ids=ids.flip(0), decoder_input_ids=ids).logits
    return model(input_ids=ids).logits


def randomise(parameters, scale=0.2):
    generator = torch.Generator().manual_seed(3)
    for parameter in parameters:
        parameter.data.normal_(0, scale, generator=generator)


def write(folder, settings, tensors):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("targets", [("query", "value"), ("all",)], ids=" ".join)
@pytest.mark.parametrize("kind", list(SHAPES))
def test_peft_opens_our_adapters_and_has_our_logits(kind, targets, tmp_path):
    peer = peer_of(kind)
    model, lora = ours_of(peer), LoraConfig(rank=3, alpha=5.0, targets=targets)
    before = logits(model)
    add_lora(model, lora)
    layers = [module for module in model.modules() if isinstance(module, LoraLinear)]
    randomise(matrix for layer in layers for matrix in (layer.lora_a, layer.lora_b))
    write(tmp_path / "adapter", *to_peft(model.config, lora, model.state_dict(), kind))
    theirs = peft.PeftModel.from_pretrained(peer, tmp_path / "adapter").eval()
    assert float((logits(model) - before).abs().max()) > 0.1
    torch.testing.assert_close(logits(theirs), logits(model), rtol=1e-5, atol=1e-5)
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    read = {name.replace(".default", "") for name, _ in theirs.named_parameters() if "lora_" in name}
    assert read == saved.keys()  # peft made no adapter that the file lacks


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("kind", list(SHAPES))
def test_we_fold_the_adapters_of_peft_into_the_same_logits(kind, rslora, tmp_path):
    peer = peer_of(kind)
    config = peft.LoraConfig(r=3, lora_alpha=7, target_modules="all-linear", use_rslora=rslora, task_type=task(kind))
    base, theirs = ours_of(peer), peft.get_peft_model(peer, config)
    outside = ("lm_head", "cls.", "vocab_", "embed_out")
    inside = (p for name, p in theirs.named_parameters() if "lora_" in name and not any(o in name for o in outside))
    randomise(inside, scale=0.1)
    theirs.eval().save_pretrained(tmp_path / "adapter")
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    tensors = {name: tensor for name, tensor in tensors.items() if not any(o in name for o in outside)}
    chosen = named_format(peer.config.to_dict())
    folded = fold_peft(chosen, base.config, base.state_dict(), settings, tensors)
    before = logits(base)
    base.load_state_dict(folded)
    assert float((logits(base) - before).abs().max()) > 0.1
    torch.testing.assert_close(logits(base), logits(theirs), rtol=1e-5, atol=1e-5)


def task(kind):
    return {"t5": "SEQ_2_SEQ_LM"}.get(kind, None if "bert" in kind else "CAUSAL_LM")


@pytest.mark.parametrize(("kind", "layer"), FUSED.items())
def test_a_fused_matrix_gets_the_ranks_of_its_layers_together(kind, layer):
    model, lora = ours_of(peer_of(kind)), LoraConfig(rank=3, alpha=6.0, targets=("query", "value", "up"))
    add_lora(model, lora)
    settings, tensors = to_peft(model.config, lora, model.state_dict())
    assert (settings["r"], settings["lora_alpha"]) == (6, 12)
    assert tensors[f"base_model.model.{layer}.lora_A.weight"].shape == (6, 32)
    assert tensors[f"base_model.model.{layer}.lora_B.weight"].shape == (96, 6)
    assert settings["fan_in_fan_out"] == (kind == "gpt2")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_dora": True}, "adapter_config.json has use_dora = True"),
        ({"peft_type": "IA3"}, "adapter_config.json has peft_type = 'IA3'"),
        ({"bias": "all"}, "adapter_config.json has bias = 'all'"),
        ({"rank_pattern": {"q_proj": 4}}, "adapter_config.json has rank_pattern"),
        ({"init_lora_weights": "pissa"}, "adapter_config.json has init_lora_weights = 'pissa'"),
        ({"r": "8"}, "adapter_config.json has r = '8' and lora_alpha = 7"),
        ({"r": 4}, r"q_proj has the shapes \(3, 32\) and \(32, 3\), but the model and r make them \(4, 32\)"),
    ],
)
def test_settings_that_mean_more_than_an_adapter_are_named(changes, words):
    model, lora = ours_of(peer_of("llama")), LoraConfig(rank=3, alpha=7.0)
    add_lora(model, lora)
    settings, tensors = to_peft(model.config, lora, model.state_dict())
    plain = ours_of(peer_of("llama"))
    with pytest.raises(ValueError, match=words):
        fold_peft(named_format({"model_type": "llama"}), plain.config, plain.state_dict(), settings | changes, tensors)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_adapter_that_is_not_finite_is_refused(value):
    model, lora = ours_of(peer_of("llama")), LoraConfig(rank=3)
    add_lora(model, lora)
    settings, tensors = to_peft(model.config, lora, model.state_dict())
    tensors[min(tensors)][0, 0] = value
    plain = ours_of(peer_of("llama"))
    with pytest.raises(ValueError, match="holds values that are NaN or infinite"):
        fold_peft(named_format({"model_type": "llama"}), plain.config, plain.state_dict(), settings, tensors)


def test_a_tensor_without_a_place_is_named():
    model, lora = ours_of(peer_of("llama")), LoraConfig(rank=3)
    add_lora(model, lora)
    settings, tensors = to_peft(model.config, lora, model.state_dict())
    plain = ours_of(peer_of("llama"))
    for name in ("model.layers.7.mlp.up_proj.lora_A.weight", "model.embed_tokens.weight"):  # modules_to_save
        more = tensors | {f"base_model.model.{name}": torch.zeros(3, 32)}
        with pytest.raises(ValueError, match=f"the adapter has .*{name}, for which this Llama model has no place"):
            fold_peft(named_format({"model_type": "llama"}), plain.config, plain.state_dict(), settings, more)
