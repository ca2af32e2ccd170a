"""Models are exported to the formats of `transformers` and imported without loss, or refused by name."""

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from lm.config import ModelConfig
from lm.exchange import FORMATS, format_of, from_hugging_face, to_hugging_face
from lm.exchange.rope import rotary_share
from lm.model import LanguageModel
from lm.presets import PRESETS, preset

transformers = pytest.importorskip("transformers")

VOCAB = 97
SMALL = {"vocab_size": VOCAB, "layers": 2, "width": 24, "heads": 4, "context_length": 30}
RMS = {"norm": "rmsnorm", "bias": False}
BERT = {
    "architecture": "encoder",
    "positions": "learned",
    "norm_position": "post",
    "embedding_norm": True,
    "norm_eps": 1e-12,
}
MODERNBERT = {"architecture": "encoder", "embedding_norm": True, "activation": "geglu"}
T5 = {"architecture": "encoder-decoder", "positions": "relative", "scaled_attention": False, **RMS}
LONGER = {"rotary_factor": 30 / 8, "rotary_original_length": 8}
CASES = {
    "gpt2": {"positions": "learned", "activation": "gelu_tanh"},
    "gpt2 untied": {"positions": "learned", "activation": "relu2", "tied_head": False},
    "gpt-neox": {"tied_head": False},
    "gpt-neox without biases": {"bias": False, "rotary_base": 500.0},
    "gpt-neox of Pythia": {"rotary_width": 2, "residual": "parallel", "tied_head": False},
    "gpt-neox linear": {"rotary_width": 4, "rotary_scaling": "linear", "rotary_factor": 2.0},
    "gpt-neox yarn": {"rotary_width": 4, "residual": "parallel", "rotary_scaling": "yarn", **LONGER},
    "llama": {"activation": "swiglu", "kv_heads": 2, "tied_head": False, **RMS},
    "llama with biases": {"activation": "swiglu", "norm": "rmsnorm", "mlp_width": 40},
    "llama linear": {"activation": "swiglu", "rotary_scaling": "linear", "rotary_factor": 2.0, **RMS},
    "llama llama3": {"activation": "swiglu", "rotary_scaling": "llama3", **LONGER, **RMS},
    "llama yarn": {"activation": "swiglu", "rotary_scaling": "yarn", **LONGER, **RMS},
    "bert": BERT,
    "bert with token types": {**BERT, "token_types": 3},
    "roberta": {**BERT, "position_offset": 2, "token_types": 1, "norm_eps": 1e-5},
    "roberta without token types": {**BERT, "position_offset": 1},
    "distilbert": BERT,
    "modernbert": {**MODERNBERT, "bias": False, "rotary_base": 160000.0},
    "modernbert with biases": {**MODERNBERT, "activation": "swiglu", "tied_head": False},
    "t5": {**T5, "activation": "relu", "scaled_head": True, "decoder_layers": 1},
    "t5 1.1": {**T5, "activation": "geglu_tanh", "tied_head": False, "relative_buckets": 8, "relative_distance": 20},
    "t5 tied without the division": {**T5, "activation": "swiglu"},
}
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id")
MODEL_TYPES = {"distilbert": "distilbert"}  # of a case whose shape two formats express
AUTO = {
    "decoder": transformers.AutoModelForCausalLM,
    "encoder": transformers.AutoModelForMaskedLM,
    "encoder-decoder": transformers.AutoModelForSeq2SeqLM,
}


def random_model(config, seed=0):
    """Return a model with all parameters drawn at random, norms and biases included."""
    model = LanguageModel(config)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.4, generator=generator)
    return model.eval()


def read_folder(folder):
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def assert_same_weights(got, expected):
    assert got.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(got[name], weight), name


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_an_exported_model_opens_in_transformers_and_imports_again_from_its_save(name, tmp_path):
    ours = random_model(ModelConfig(**SMALL, **CASES[name]))
    config, tensors = to_hugging_face(ours.config, ours.state_dict(), MODEL_TYPES.get(name))
    assert config["model_type"].replace("_", "-") == name.split()[0]
    (tmp_path / "config.json").write_text(json.dumps({**dict.fromkeys(SPECIAL_IDS, 0), **config}))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    peer, loading = AUTO[ours.config.architecture].from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loading.values()), loading

    # RoBERTa does not count padding ids, 1 or less here, as positions.
    source, ids = torch.randint(2, VOCAB, (2, 30)), torch.randint(2, VOCAB, (2, 25))
    if ours.config.architecture == "encoder-decoder":
        expected, got = ours.logits(ours(ids, source)), peer(input_ids=source, decoder_input_ids=ids).logits
    else:
        expected, got = ours.logits(ours(ids)), peer(ids).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)

    peer.save_pretrained(tmp_path / "saved")
    back = from_hugging_face(*read_folder(tmp_path / "saved"))
    assert_same_weights(back.weights, ours.state_dict())
    again = LanguageModel(back.config).eval()
    again.load_state_dict(back.weights)
    same = again.logits(again(ids, source) if back.config.architecture == "encoder-decoder" else again(ids))
    torch.testing.assert_close(same, expected)


@st.composite
def configurations(draw):
    heads, half = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 4))
    kind = draw(st.sampled_from(sorted(CASES)))
    groups = {"kv_heads": draw(st.sampled_from([0, 1, heads]))} if kind.startswith("llama") else {}
    if kind.startswith("gpt-neox"):
        groups["rotary_width"] = 2 * draw(st.integers(0, half))
    if kind.startswith(("llama", "t5")):
        groups["head_width"] = draw(st.sampled_from([0, 2, 10]))
    shape = {
        "vocab_size": draw(st.integers(1, 20)),
        "layers": draw(st.integers(1, 3)),
        "heads": heads,
        "width": heads * 2 * half,
        "mlp_width": draw(st.integers(0, 20)),
        "context_length": draw(st.integers(1, 20)),
        "norm_eps": draw(st.sampled_from([1e-12, 1e-5, 1e-3])),
    }
    if "yarn" in kind:
        length = draw(st.integers(9, 20))
        shape |= {"context_length": length, "rotary_factor": length / 8}
    return ModelConfig(**{**CASES[kind], **shape, **groups})


@settings(max_examples=60, deadline=None)
@given(config=configurations(), seed=st.integers(0, 1000))
def test_export_and_import_are_inverse(config, seed):
    model = random_model(config, seed)
    settings, tensors = to_hugging_face(config, model.state_dict())
    back = from_hugging_face(json.loads(json.dumps(settings)), tensors)
    assert_same_weights(back.weights, model.state_dict())
    filled = {"kv_heads": config.key_value_heads, "mlp_width": config.hidden_width}
    filled["head_width"] = config.head_features
    if config.positions == "rotary":
        filled["rotary_width"] = config.rotary_features
    if config.architecture == "encoder-decoder":
        filled["decoder_layers"] = config.decoder_layers or config.layers
    assert replace(back.config, **filled) == replace(config, **filled)


def test_the_exported_share_gives_transformers_every_number_of_rotated_components():
    """transformers computes int(head width x share), where a rounded product can fall below the number."""
    for width in range(2, 258, 2):
        for rotated in range(2, width + 1, 2):
            config = ModelConfig(width=width, heads=1, rotary_width=rotated)
            assert int(width * rotary_share(config)) == rotated, (width, rotated)


@pytest.mark.parametrize(
    ("preset_name", "format_name"),
    [
        *(("gpt2", "GPT-2"), ("gpt2-xl", "GPT-2"), ("llama", "Llama"), ("bert-large", "BERT"), ("t5-base", "T5")),
        *(("roberta-base", "RoBERTa"), ("pythia-70m", "GPT-NeoX"), ("gpt-neox-20b", "GPT-NeoX")),
    ],
)
def test_published_shapes_are_exported_in_their_own_format(preset_name, format_name):
    assert format_of(preset(preset_name)).name == format_name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("gpt2", "gpt2"), ("llama", "llama"), ("bert-base", "bert"), ("t5-small", "t5")),
        ("distilbert-base", "distilbert"),
    ],
)
def test_settings_of_published_models_equal_the_defaults_of_transformers(name, kind):
    """Except GPT-2's dropout, and rope_scaling, which versions spell differently."""
    settings = format_of(preset(name), kind).write(preset(name))
    published = transformers.AutoConfig.for_model(kind).to_dict()
    shared = {key for key in settings.keys() & published.keys() if not key.endswith("pdrop")} - {"rope_scaling"}
    assert len(shared) >= 8
    assert {key: settings[key] for key in shared} == {key: published[key] for key in shared}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"positions": "learned", "soft_cap": 30.0}, ["GPT-2 would need model.soft_cap = 0.0, not 30.0"]),
        ({"positions": "learned", "scaled_attention": False}, ["GPT-2 would need model.scaled_attention = True"]),
        ({"positions": "learned", "window": 8}, ["model.window = 0, not 8"]),
        ({"positions": "learned", "bias": False}, ["GPT-2 would need model.bias = True, not False"]),
        ({"positions": "learned", "norm": "rmsnorm"}, ["GPT-2 would need model.norm = 'layernorm', not 'rmsnorm'"]),
        ({"positions": "learned", "kv_heads": 2}, ["GPT-2 would need model.kv_heads = 0, not 2"]),
        ({"positions": "learned", "head_width": 2}, ["GPT-2 would need model.head_width = 0, not 2"]),
        ({**BERT, "head_width": 2}, ["BERT would need model.head_width = 0, not 2"]),
        ({"activation": "swiglu", "qk_norm": True, **RMS}, ["Llama would need model.qk_norm = False, not True"]),
        ({"activation": "swiglu", "value_embeddings": 1, **RMS}, ["Llama would need model.value_embeddings = 0"]),
        ({"activation": "swiglu", "norm_position": "post", **RMS}, ["Llama would need model.norm_position = 'pre'"]),
        ({"architecture": "encoder"}, ["BERT would need model.positions = 'learned', not 'rotary'"]),
        ({"architecture": "encoder"}, ["ModernBERT would need model.embedding_norm = True, not False"]),
        ({**MODERNBERT, "window": 8}, ["ModernBERT would need model.window = 0, not 8"]),
        ({**BERT, "activation": "relu"}, ["BERT would need model.activation = 'gelu', not 'relu'"]),
        ({**BERT, "tied_head": False}, ["BERT would need model.tied_head = True, not False"]),
        ({**T5, "scaled_attention": True}, ["T5 would need model.scaled_attention = False, not True"]),
        ({**T5, "scaled_head": True, "tied_head": False}, ["T5 would need model.scaled_head = False where the head"]),
        (
            {**CASES["llama yarn"], "rotary_factor": 4.0},
            [
                "Llama would need model.rotary_factor = 3.75",
                "model.context_length / model.rotary_original_length",
                "4.0",
            ],
        ),
        (
            {"rotary_scaling": "yarn", **LONGER, "rotary_original_length": 15},
            ["GPT-NeoX would need model.rotary_factor = 2.0", "not 3.75"],
        ),
        ({"mlp": False}, ["model.mlp = True, not False"]),
        ({"activation": "swiglu", "rotary_width": 4, **RMS}, ["Llama would need model.rotary_width = 0, not 4"]),
        (
            {"activation": "swiglu", "residual": "parallel", **RMS},
            ["Llama would need model.residual = 'sequential', not 'parallel'"],
        ),
    ],
)
def test_models_that_no_format_expresses_are_refused_by_name(config, words):
    with pytest.raises(ValueError, match="no format of transformers") as refusal:
        format_of(ModelConfig(**SMALL, **config))
    for word in words:
        assert word in str(refusal.value)


def test_every_preset_has_a_format_or_is_refused_by_name():
    for name in PRESETS:
        config = replace(preset(name), vocab_size=preset(name).vocab_size or VOCAB)
        try:
            assert format_of(config) in FORMATS
        except ValueError as refusal:
            assert "would need model." in str(refusal)


def exported(name="gpt2", **changes):
    model = random_model(ModelConfig(**{**SMALL, **CASES[name], **changes}))
    return to_hugging_face(model.config, model.state_dict(), MODEL_TYPES.get(name))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("gpt2", {"model_type": "mamba"}, "model_type = 'mamba'"),
        ("gpt2", {"model_type": None}, "model_type = None"),
        ("gpt2", {"model_type": ["gpt2"]}, r"model_type = \['gpt2'\]"),
        ("gpt2", {"activation_function": "tanh"}, "activation_function = 'tanh'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights = False"),
        ("gpt2", {"n_embd": "24"}, "n_embd = '24', but it must be of type int"),
        ("gpt2", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ("gpt2", {"tie_word_embeddings": False}, "the weights have no lm_head.weight"),
        ("gpt2", {"n_layer": 3}, "the weights have no transformer.h.2.ln_1.weight"),
        ("gpt2", {"n_layer": 1}, "the weights have transformer.h.1."),
        ("gpt2", {"n_positions": 31}, r"wpe.weight has the shape \(30, 24\), but config.json makes it \(31, 24\)"),
        ("gpt2", {"n_head": 5}, "model.heads"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("llama", {"head_dim": 32}, "q_proj.weight has the shape"),
        ("llama", {"mlp_bias": True}, "mlp_bias = True"),
        ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "rope_type = 'longrope'"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "beta_fast": 16}}, "beta_fast = 16"),
        ("llama", {"num_attention_heads": 0}, "num_attention_heads = 0, but it must be 1 or more"),
        ("llama", {"num_key_value_heads": 0}, "num_key_value_heads = 0, but it must be 1 or more"),
        ("gpt2", {"n_inner": 0}, "n_inner = 0, but it must be 1 or more"),
        ("t5", {"num_decoder_layers": 0}, "num_decoder_layers = 0, but it must be 1 or more"),
        ("t5", {"scale_decoder_outputs": "no"}, "scale_decoder_outputs = 'no'"),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": [2]}}, r"factor = \[2\] of rotary positions"),
        ("gpt-neox", {"rope_scaling": {"rope_type": "linear", "factor": None}}, "factor = None .* must be a number"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": "4"}}, "factor = '4' .* must be a number"),
        ("llama yarn", {"rope_scaling": {"rope_type": ["yarn"], "factor": 4}}, r"rope_type = \['yarn'\]"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 8.5}},
            "original_max_position_embeddings = 8.5 .* must be a whole number",
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "linear", "factor": 0.5}},
            "config.json .* model.rotary_factor is 0.5",
        ),
        ("llama", {"rope_scaling": "yarn"}, "rope_scaling = 'yarn', but it must be an object"),
        ("gpt-neox", {"use_parallel_residual": 1}, "use_parallel_residual = 1, but it must be of type bool"),
        ("gpt-neox", {"rotary_pct": 0.5}, "rotary_pct = 0.5, which rotates 3 of the 6 components of a head"),
        ("gpt-neox", {"rotary_pct": 0.0}, "rotary_pct = 0.0, but it must be above 0 and at most 1"),
        ("gpt-neox", {"rotary_pct": math.nan}, "rotary_pct = nan, but it must be above 0 and at most 1"),
        ("gpt-neox", {"rotary_pct": 2}, "rotary_pct = 2, but it must be above 0 and at most 1"),
        ("gpt-neox", {"rotary_pct": 0.1}, "rotary_pct = 0.1, which rotates 0 of the 6 components of a head"),
        ("gpt-neox", {"rope_parameters": {"partial_rotary_factor": "1"}}, "partial_rotary_factor = '1'"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
        ("gpt-neox", {"attention_bias": False}, "the weights have gpt_neox.final_layer_norm.bias"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ("bert", {"is_decoder": True}, "is_decoder = True"),
        ("roberta", {"hidden_act": "relu"}, "hidden_act = 'relu'"),
        ("roberta", {"pad_token_id": -1}, "pad_token_id = -1, but it must be 0 or more"),
        ("roberta", {"pad_token_id": None}, "pad_token_id = None, but it must be of type int"),
        ("roberta", {"pad_token_id": 31}, "config.json .* model.context_length is 0"),
        ("roberta", {"max_position_embeddings": 30}, r"has the shape \(32, 24\), but config.json makes it \(30, 24\)"),
        ("distilbert", {"activation": "relu"}, "activation = 'relu'"),
        ("distilbert", {"n_layers": 3}, "the weights have no distilbert.transformer.layer.2.attention.q_lin.weight"),
        ("modernbert", {"global_attn_every_n_layers": 3}, "global_attn_every_n_layers = 3, which is not supported"),
        ("modernbert", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types = .*'sliding_attention'"),
        ("modernbert", {"norm_bias": True}, "norm_bias = True, .* all of them must be equal"),
        ("modernbert", {"decoder_bias": False}, "decoder_bias = False"),
        ("modernbert", {"hidden_activation": "relu"}, "hidden_activation = 'relu'"),
        ("modernbert", {"classifier_activation": "silu"}, "classifier_activation = 'silu'"),
        (
            "modernbert",
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}},
            "rope_type = 'linear'",
        ),
        ("modernbert", {"rope_parameters": [1]}, r"rope_parameters = \[1\], but it must be an object"),
        ("modernbert", {"rope_parameters": {"full_attention": "x"}}, "'x', but it must be an object"),
        ("t5", {"d_kv": 64}, "SelfAttention.q.weight has the shape"),
        ("t5", {"feed_forward_proj": "gated-relu"}, "feed_forward_proj = 'gated-relu'"),
    ],
)
def test_unsupported_settings_are_refused_by_name(name, change, words):
    settings, tensors = exported(name)
    with pytest.raises(ValueError, match=words):
        from_hugging_face({**settings, **change}, tensors)


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_rotary_scaling_by_one_is_read_as_no_scaling(kind):
    settings, tensors = exported("llama")
    config = from_hugging_face({**settings, "rope_scaling": {"rope_type": kind, "factor": 1.0}}, tensors).config
    assert (config.rotary_scaling, config.rotary_factor, config.rotary_original_length) == ("none", 1.0, 0)


@pytest.mark.parametrize(
    "name",
    ["gpt2", "gpt-neox", "gpt-neox of Pythia", "llama yarn", "bert", "roberta", "distilbert", "modernbert", "t5"],
)
def test_any_damaged_setting_is_accepted_or_refused_in_a_sentence(name):
    settings, tensors = exported(name)
    rope = settings.get("rope_scaling") or {}
    damaged = [{key: value} for key in settings for value in (0, -1, None, [2], "x", {}, 1.5, math.nan)]
    damaged += [{"rope_scaling": {**rope, key: value}} for key in rope for value in (0, -1, None, [2], "x", math.nan)]
    for change in damaged:
        try:
            from_hugging_face({**settings, **change}, tensors)
        except ValueError as error:
            assert "config.json" in str(error) or str(error).startswith("the weights have"), (change, error)


def test_yarn_of_transformers_5_is_read_with_its_factor():
    """transformers 5 writes rope_parameters; the factor counts there, not the ratio of the lengths."""
    settings, tensors = exported("llama yarn")
    rope = {**settings.pop("rope_scaling"), "rope_theta": 10000.0, "factor": 4.0}
    config = from_hugging_face({**settings, "rope_parameters": rope}, tensors).config
    assert (config.rotary_scaling, config.rotary_factor, config.rotary_original_length) == ("yarn", 4.0, 8)


def test_a_file_of_the_bare_model_is_read_too():
    settings, tensors = exported("gpt2")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    bare["h.0.attn.bias"] = torch.ones(30, 30)  # a mask buffer in old files
    read, complete = from_hugging_face(settings, bare), from_hugging_face(settings, tensors)
    assert read.config == complete.config
    assert_same_weights(read.weights, complete.weights)


def test_an_old_bert_with_a_pooler_is_read_too():
    settings, tensors = exported("bert")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor for name, tensor in tensors.items()}
    old = {name.replace("LayerNorm.bias", "LayerNorm.beta"): tensor for name, tensor in old.items()}
    old |= {"bert.pooler.dense.weight": torch.ones(24, 24), "cls.seq_relationship.bias": torch.ones(2)}
    read = from_hugging_face(settings, old)
    assert_same_weights(read.weights, from_hugging_face(settings, tensors).weights)
    assert read.left_out == ["the pooler", "the next-sentence head"]
    assert not read.new_head


@pytest.mark.parametrize(
    ("cls", "left_out"),
    [
        ("BertForPreTraining", ["the pooler", "the next-sentence head"]),
        ("BertModel", ["the pooler"]),
        ("BertForSequenceClassification", ["the pooler", "the classifier"]),
        ("BertForQuestionAnswering", ["the question-answering head"]),
        ("RobertaModel", ["the pooler"]),
        ("RobertaForTokenClassification", ["the classifier"]),
        ("DistilBertModel", []),
        ("DistilBertForSequenceClassification", ["the classifier"]),
        ("ModernBertModel", []),
        ("ModernBertForSequenceClassification", ["the classifier"]),
    ],
)
@torch.no_grad()
def test_other_classes_of_the_family_give_the_same_encoder_and_name_what_is_left_out(cls, left_out, tmp_path):
    """A model without a masked-token head gets a new one, the same every time."""
    family = cls[: cls.index("For")] if "For" in cls else cls.removesuffix("Model")
    shape = {"vocab_size": VOCAB, "num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 4}
    shape |= {"intermediate_size": 40, "max_position_embeddings": 32}
    if family == "ModernBert":
        shape |= {"layer_types": ["full_attention"] * 2, **dict.fromkeys(SPECIAL_IDS, 0)}
    peer = getattr(transformers, cls)(getattr(transformers, f"{family}Config")(**shape)).eval()
    for parameter in peer.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    peer.save_pretrained(tmp_path)
    read = from_hugging_face(*read_folder(tmp_path))
    assert read.left_out == left_out
    assert read.new_head == (cls != "BertForPreTraining")
    assert_same_weights(from_hugging_face(*read_folder(tmp_path)).weights, read.weights)
    ours = LanguageModel(read.config).eval()
    ours.load_state_dict(read.weights)
    ids = torch.randint(2, VOCAB, (2, 20))
    torch.testing.assert_close(ours(ids), peer.base_model(ids).last_hidden_state, atol=1e-4, rtol=1e-4)


def test_half_precision_becomes_float32():
    settings, tensors = exported("llama")
    read = from_hugging_face(settings, {name: tensor.bfloat16() for name, tensor in tensors.items()})
    assert {weight.dtype for weight in read.weights.values()} == {torch.float32}


def test_missing_settings_have_the_defaults_of_transformers():
    in_rope = {"rope_theta": "rope_theta", "rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}
    for each in FORMATS:
        peer = transformers.AutoConfig.for_model(each.model_type).to_dict()
        rope = peer.get("rope_parameters") or {}
        for name, value in each.defaults.items():
            # transformers 4 has rotary settings at the top level.
            theirs = rope.get(in_rope.get(name), peer.get(name))
            assert theirs == value or theirs is None or value is None, (each.name, name)


def test_gpt_neox_without_biases_has_zero_biases_until_they_are_trained():
    ours = random_model(ModelConfig(**SMALL, bias=False))
    config, tensors = to_hugging_face(ours.config, ours.state_dict())
    biases = [name for name in tensors if name.endswith(".bias")]
    assert config["attention_bias"] and len(biases) == 6 * 2 + 1 and not any(tensors[name].any() for name in biases)
    back = from_hugging_face(config, tensors)
    assert not back.config.bias and back.weights.keys() == ours.state_dict().keys()
    without = {name: tensor for name, tensor in tensors.items() if ".attention." not in name or "weight" in name}
    assert from_hugging_face({**config, "attention_bias": False}, without).config == back.config  # older exports
    trained = {**tensors, biases[0]: tensors[biases[0]] + 1}
    assert from_hugging_face(config, trained).config == replace(back.config, bias=True)
