"""For any combination of options, the logits of a model equal the formulas in `tests.lm.textbook`."""

from dataclasses import fields
from typing import get_args

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.attention.backends import BACKENDS
from lm.config import (
    Activation,
    Architecture,
    AttentionPattern,
    CrossKind,
    ModelConfig,
    Norm,
    NormPosition,
    Positions,
    Residual,
)
from lm.model import LanguageModel
from tests.lm.layer_groups import with_groups
from tests.lm.textbook import logits

VOCABULARY = 23
# Options that do not affect a model in evaluation mode, or whose formulas other tests compare: how it is initialised
# and trained; the offset of learned positions, and the frequencies of yarn and llama3 (test_positions).
ELSEWHERE = {
    "mixers",
    "initialization",
    "zero_projections",
    "dropout",
    "hidden_dropout",
    "stochastic_depth",
    "document_mask",
}
ELSEWHERE |= {"position_offset", "rotary_original_length", "mixer"}


@st.composite
def configurations(draw):
    architecture = draw(st.sampled_from(get_args(Architecture)))
    layers, heads, half = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 3))
    both, positions = architecture == "encoder-decoder", draw(st.sampled_from(get_args(Positions)))
    head_width, mlp = draw(st.sampled_from([0, 2, 6])), draw(st.booleans())
    norm_position = draw(st.sampled_from(get_args(NormPosition)))
    more = {}
    residuals = [*get_args(Residual)]
    if not (mlp and norm_position == "pre" and not both):
        residuals.remove("parallel")
    if norm_position in ("deepnorm", "rezero"):
        residuals.remove("none")
    residual = draw(st.sampled_from(residuals))
    if mlp and norm_position != "rezero" and residual != "parallel":
        more["mlp_norm"] = draw(st.booleans())
    if both:
        more["cross"] = draw(st.sampled_from(get_args(CrossKind)))
    if norm_position == "deepnorm":
        more["initialization"] = "xavier"
    if positions == "rotary":
        more["rotary_width"] = 2 * draw(st.integers(0, (head_width or 2 * half) // 2))
        more["rotary_base"] = draw(st.sampled_from([100.0, 10000.0]))
        more |= draw(st.sampled_from([{}, {"rotary_scaling": "linear", "rotary_factor": 2.5}]))
    if positions == "relative":
        buckets = draw(st.sampled_from([4, 8, 32]))
        more |= {"relative_buckets": buckets, "relative_distance": buckets // 2 + draw(st.integers(1, 20))}
    if positions == "relative-keys":
        more["relative_distance"] = draw(st.integers(1, 9))
    pattern = draw(st.sampled_from(get_args(AttentionPattern)))
    if pattern != "none":
        more |= {"attention_pattern": pattern, "pattern_size": draw(st.integers(2, 4))}
    if pattern in ("fixed", "global", "random"):
        more["pattern_count"] = draw(st.integers(1, 2))
    config = ModelConfig(
        architecture=architecture,
        vocab_size=VOCABULARY,
        context_length=draw(st.integers(8, 12)),
        layers=layers,
        decoder_layers=draw(st.integers(0, 3)) if both else 0,
        width=2 * half * heads,
        heads=heads,
        kv_heads=draw(st.sampled_from([n for n in (0, 1, 2, 4) if n == 0 or heads % n == 0])),
        head_width=head_width,
        mlp=mlp,
        mlp_width=draw(st.sampled_from([0, 7])),
        positions=positions,
        norm=draw(st.sampled_from(get_args(Norm))),
        norm_position=norm_position,
        residual=residual,
        embedding_norm=architecture == "encoder" and draw(st.booleans()),
        norm_eps=draw(st.sampled_from([1e-12, 1e-5, 0.1])),
        qk_norm=draw(st.booleans()),
        activation=draw(st.sampled_from(get_args(Activation))),
        bias=draw(st.booleans()),
        tied_head=draw(st.booleans()),
        scaled_attention=draw(st.booleans()),
        scaled_embedding=draw(st.booleans()),
        scaled_head=draw(st.booleans()),
        token_types=draw(st.sampled_from([0, 2])),
        window=draw(st.sampled_from([0, 1, 3])),
        soft_cap=draw(st.sampled_from([0.0, 2.0])),
        value_embeddings=0 if both else draw(st.integers(0, (layers + 1) // 2)),
        embedding_skips=draw(st.booleans()),
        attention=draw(st.sampled_from(sorted(BACKENDS))),
        **more,
    )
    return with_groups(config, draw(st.integers(0, 2)))


def random_model(config, seed):
    """Return a model with all parameters random, so that a missing bias or scale changes the logits."""
    model, generator = LanguageModel(config).double(), torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.2, 0.5, generator=generator)
    model.compute_dtype = torch.float64
    return model.eval()


@settings(max_examples=90, deadline=None)
@given(config=configurations(), length=st.integers(1, 8), seed=st.integers(0, 2**16))
def test_logits_equal_the_formulas(config, length, seed):
    model = random_model(config, seed)
    generator = torch.Generator().manual_seed(seed)
    ids, source = (torch.randint(VOCABULARY, (n,), generator=generator) for n in (length, 6))
    both = config.architecture == "encoder-decoder"
    expected = logits(config, model.state_dict(), ids, source if both else None)
    with torch.no_grad():
        got = model.logits(model(ids[None], source[None] if both else None))[0]
    # tables of sines are float32
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_every_option_of_a_model_is_covered():
    drawn = set()

    @settings(max_examples=300, deadline=None, database=None)
    @given(config=configurations())
    def collect(config):
        default = ModelConfig()
        drawn.update(
            field.name for field in fields(config) if getattr(config, field.name) != getattr(default, field.name)
        )

    collect()
    assert drawn | ELSEWHERE == {field.name for field in fields(ModelConfig)}
