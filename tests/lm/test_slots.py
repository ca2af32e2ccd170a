"""Continuous batching: a text has the same tokens as alone, whenever other texts begin and end."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.config import ModelConfig
from lm.decoding.generation import generate
from lm.decoding.packed import prepare
from lm.decoding.requests import GenerationRequest
from lm.decoding.slots import Slots
from lm.decoding.state import pad_left
from lm.model import LanguageModel

SHAPE = {"vocab_size": 53, "context_length": 24, "layers": 2, "width": 32, "heads": 4}
DECODERS = {
    "rotary": {},
    "rotary-window": {"window": 5, "kv_heads": 2},
    "gpt-neox": {"rotary_width": 4, "residual": "parallel"},
    "learned": {"positions": "learned"},
    "learned-window": {"positions": "learned", "window": 7, "attention": "blocked"},
    "sinusoidal-post": {"positions": "sinusoidal", "norm_position": "post", "attention": "closed_form"},
    "alibi": {"positions": "alibi", "kv_heads": 2},
    "alibi-window": {"positions": "alibi", "window": 6},
    "fixed": {"attention_pattern": "fixed", "pattern_size": 4},
    "random-window": {"attention_pattern": "random", "pattern_size": 2, "window": 6},
    "relative": {"positions": "relative", "scaled_attention": False, "kv_heads": 1},
    "relative keys": {"positions": "relative-keys", "relative_distance": 3, "kv_heads": 2},
    "relative-window": {"window": 6, "positions": "relative", "relative_distance": 20},
    "no positions": {"positions": "none", "attention": "sdpa"},
    "llama": {"norm": "rmsnorm", "activation": "swiglu", "bias": False, "tied_head": False, "kv_heads": 2},
    "modern": {
        "layers": 3,
        "norm": "rmsnorm",
        "qk_norm": True,
        "activation": "relu2",
        "soft_cap": 15.0,
        "value_embeddings": 2,
        "embedding_skips": True,
        "bias": False,
        "attention": "reference",
    },
}


def random_model(config, dtype):
    """Return a model with weights so large that its output depends on every input."""
    model = LanguageModel(config, seed=0)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.to(dtype).compute_dtype = dtype
    return prepare(model.requires_grad_(False))


@pytest.fixture(scope="module", params=sorted(DECODERS))
def config(request):
    return ModelConfig(**SHAPE | DECODERS[request.param])


@pytest.fixture(scope="module")
def decoder(config):
    """Return a model in float64, where rounding does not decide which token is the likeliest."""
    return random_model(config, torch.float64)


@pytest.fixture(scope="module")
def float_decoder(config):
    return random_model(config, torch.float32)


@st.composite
def schedules(draw):
    """Draw up to 7 requests, each with its first step and the number of tokens after which its client leaves."""
    schedule = []
    for _ in range(draw(st.integers(1, 7))):
        tokens = draw(st.integers(1, 23))
        prompt = draw(st.lists(st.integers(0, 52), min_size=1, max_size=24 - tokens))
        leaves = draw(st.none() | st.integers(0, tokens))
        schedule.append((draw(st.integers(0, 12)), {"prompt_ids": prompt, "max_tokens": tokens}, leaves))
    return schedule


def added(slots, request, owner=None):
    """Add a text for a request to the slots, and return the text."""
    text = slots.new_text(request, owner)
    slots.add(text)
    return text


def run(slots, schedule, **options):
    """Return the tokens of each request of a schedule. Three consecutive requests have one owner.

    Texts of the first owner therefore give way to those of the next, and are read again later.
    """
    coming = [(wait, GenerationRequest(**asked, **options), leaves) for wait, asked, leaves in schedule]
    texts, wait = {}, 0
    while coming or len(slots):
        while coming and wait >= coming[0][0]:
            _, request, leaves = coming.pop(0)
            text = added(slots, request, owner=len(texts) // 3)
            text.left = leaves == 0
            texts[text], wait = ([], leaves), 0
        wait += 1
        for text, token in slots.step():
            found, leaves = texts[text]
            assert not text.left
            found.append(token)
            text.left = len(found) == leaves
    return [found for found, _ in texts.values()]


def ended(ids, asked, leaves, stops):
    """Return the first ids up to the end of the text."""
    ids = ids[: asked["max_tokens"] if leaves is None else leaves]
    ends = [i for i, token in enumerate(ids, 1) if token in stops]
    return ids[: ends[0]] if ends else ids


@settings(max_examples=8)
@given(
    schedule=schedules(),
    rows=st.integers(1, 5),
    prefill=st.sampled_from([1, 5, 16, 256]),
    stops=st.lists(st.integers(0, 52), max_size=4),
)
def test_greedy_tokens_do_not_depend_on_other_texts(decoder, schedule, rows, prefill, stops):
    found = run(Slots(decoder, rows, prefill=prefill), schedule, temperature=0, stop_ids=stops)
    ids, present = pad_left([asked["prompt_ids"] for _, asked, _ in schedule])
    expected = generate(decoder, ids, 23, present=present, temperature=0).tolist()
    for tokens, new, (_, *request) in zip(found, expected, schedule, strict=True):
        assert [token.id for token in tokens] == ended(new, *request, stops)


@settings(max_examples=3)
@given(schedule=schedules(), rows=st.integers(1, 5))
def test_log_probabilities_equal_those_of_the_whole_text_to_rounding(float_decoder, schedule, rows):
    """The shape of a product decides the order of its sums, which changes log-probabilities by less than 1e-4."""
    found = run(Slots(float_decoder, rows, prefill=16), schedule, temperature=1.0, top=53)
    for tokens, (_, asked, _) in zip(found, schedule, strict=True):
        if not tokens:
            continue
        text = torch.tensor([[*asked["prompt_ids"], *(token.id for token in tokens)]])
        expected = float_decoder.logits(float_decoder.model(text))[0, -len(tokens) - 1 : -1].log_softmax(dim=-1)
        for token, row in zip(tokens, expected, strict=True):
            assert token.log_probability == pytest.approx(row[token.id].item(), abs=1e-4)
            assert token.top_log_probabilities == pytest.approx(row[token.top_ids].tolist(), abs=1e-4)


@pytest.fixture(scope="module")
def plain():
    return random_model(ModelConfig(**SHAPE), torch.float64)


@settings(max_examples=10)
@given(schedule=schedules(), rows=st.integers(1, 5), seed=st.integers(0, 2**63 - 1))
def test_samples_depend_on_their_own_seed_only(plain, schedule, rows, seed):
    options = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.01}
    found = run(Slots(plain, rows), schedule, seed=seed, **options)
    for tokens, (_, asked, leaves) in zip(found, schedule, strict=True):
        expected = generate(
            plain,
            torch.tensor(asked["prompt_ids"]),
            asked["max_tokens"],
            generator=torch.Generator().manual_seed(seed),
            **options,
        )
        assert [token.id for token in tokens] == ended(expected.tolist(), asked, leaves, ())


def test_running_texts_get_a_token_in_every_step_while_a_long_prompt_is_read(plain):
    slots = Slots(plain, 2, prefill=4)
    running = added(slots, GenerationRequest(prompt_ids=[7], max_tokens=20, temperature=0))
    slots.step()
    waiting = added(slots, GenerationRequest(prompt_ids=range(20), max_tokens=2, temperature=0))
    steps = [[text for text, _ in slots.step()] for _ in range(6)]
    assert steps == [[running]] * 4 + [[running, waiting]] * 2


@pytest.mark.parametrize("owners", [1, 2, 3])
def test_a_short_text_does_not_wait_for_the_many_texts_of_other_owners(plain, owners):
    slots = Slots(plain, 4)
    for number in range(1000):
        added(slots, GenerationRequest(prompt_ids=[number % 50], max_tokens=23), owner=number % owners)
    for _ in range(10):
        slots.step()
    short = added(slots, GenerationRequest(prompt_ids=[7], max_tokens=4), owner="short")
    made = [token for _ in range(5) for text, token in slots.step() if text is short]
    assert len(made) == 4


def test_texts_of_one_owner_fill_all_rows_while_nobody_else_waits(plain):
    slots = Slots(plain, 4)
    for number in range(8):
        added(slots, GenerationRequest(prompt_ids=[number], max_tokens=10, temperature=0), owner="one")
    assert sum(len(slots.step()) for _ in range(20)) == 80


def test_owners_share_the_rows_equally(plain):
    slots = Slots(plain, 4)
    for owner in ("one", "other"):
        for number in range(50):
            added(slots, GenerationRequest(prompt_ids=[number], max_tokens=10), owner=owner)
    made = [text.owner for _ in range(200) for text, _ in slots.step()]
    assert 0.8 < made.count("one") / made.count("other") < 1.25


def test_a_text_with_logits_that_are_not_finite_ends_alone():
    """Neither its neighbours nor the texts that take its row later are affected."""
    broken = random_model(ModelConfig(**SHAPE, positions="learned"), torch.float64)
    broken.stack.positional.learned.weight[10] = math.nan
    prompts = [(0, range(5), 6), (0, range(9), 6), (3, [3], 9), (0, [4], 9)]
    schedule = [(wait, {"prompt_ids": list(ids), "max_tokens": tokens}, None) for wait, ids, tokens in prompts]
    others = run(Slots(broken, 2), schedule, temperature=0)
    failed = others.pop(1)
    del schedule[1]
    assert [isinstance(item, ValueError) for item in failed] == [False, False, True]
    assert str(failed[-1]).startswith("the model's logits are not finite")
    for tokens, (_, asked, _) in zip(others, schedule, strict=True):
        alone = generate(broken, torch.tensor(asked["prompt_ids"]), asked["max_tokens"], temperature=0)
        assert [token.id for token in tokens] == alone.tolist()


def test_disallowed_ids_are_never_generated_but_have_a_probability(plain):
    allowed = torch.arange(53) < 20
    schedule = [(0, {"prompt_ids": [i], "max_tokens": 20}, None) for i in range(4)]
    for options in ({"temperature": 0}, {"temperature": 2.0}):
        found = run(Slots(plain, 4, allowed=allowed), schedule, top=53, **options)
        for tokens in found:
            assert all(token.id < 20 for token in tokens)
            for token in tokens:
                assert sum(map(math.exp, token.top_log_probabilities)) == pytest.approx(1)
    assert max(token.id for tokens in run(Slots(plain, 4), schedule, temperature=2.0) for token in tokens) >= 20


def test_only_decoders_have_slots(plain):
    encoder = prepare(LanguageModel(replace(plain.config, architecture="encoder"), seed=0))
    with pytest.raises(ValueError, match="the model is an encoder"):
        Slots(encoder, 2)
