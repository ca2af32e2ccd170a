"""What `bytelm train` chooses for a text and a budget: pure functions.

`docs/training.md` has the measurements behind the numbers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import Literal, NamedTuple

from pipelines.first_model.fit import HIGHEST_RATE, LAW, equal_tokens, muon_rate
from pipelines.first_model.text_facts import TextFacts
from pipelines.recipes.recipe import Recipe, load_recipe

Kind = Literal["gpt", "bert"]

# Less text teaches the smallest model nothing.
LEAST_BYTES = 10_000
# The most passes over the text: more passes gain little. An encoder gains from more passes, because each masks other
# tokens.
EPOCHS: Mapping[Kind, int] = {"gpt": 8, "bert": 32}
# A text that is read at least this often gets a stronger weight decay: by itself it would shrink the weights to 1/e in
# DECAY_EPOCHS epochs at the peak rate. It is at most MOST_DECAY.
REPEATED, DECAY_EPOCHS, MOST_DECAY = 4, 1.4, 5.0
# Batches to choose from on a GPU, as multiples of the recipe's.
GPU_BATCHES = (1, 4, 16, 64)
# The second moment of AdamW forgets no faster, however large the batches.
LEAST_BETA2 = 0.95
BYTE_VOCABULARY = 256 + 5  # with the special tokens
USUAL_VOCABULARY = 4096
# Entries of a vocabulary, and the fewest bytes of text that the training reads with it.
VOCABULARIES = (
    (512, 10_000),
    (1024, 30_000),
    (2048, 300_000),
    (4096, 1_500_000),
    (8192, 20_000_000),
    (16_384, 150_000_000),
    (32_768, 600_000_000),
)
# Scripts with thousands of letters.
LARGE_SCRIPTS = ("Han", "Hangul")
LEAST_CONTEXT = 32
# The fewest bytes of a split: a block of the shortest context with any vocabulary.
LEAST_SPLIT_BYTES = 8 * LEAST_CONTEXT
# Blocks that the validation split must have.
LEAST_VALIDATION_BLOCKS = 8
# Models up to this width suit any text.
ALWAYS_SUITABLE_WIDTH = 128
# The most parameters of a wider model for each token of the text, without repetition. The weight decay of `with_decay`
# lets decoders be larger. An encoder gains more from more epochs than from more parameters.
PARAMETERS_PER_TOKEN: Mapping[Kind, int] = {"gpt": 24, "bert": 4}
# The recipe whose learning rates were measured.
RATED_RECIPE = "gpt-tiny"


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of a model, and the recipes that it changes."""

    gpt: str
    bert: str
    layers: int
    width: int
    heads: int
    context: int

    def parameters(self, vocab_size: int) -> int:
        """Return about how many parameters a model with tied embeddings has."""
        return 12 * self.layers * self.width**2 + vocab_size * self.width


SIZES = (
    Size(gpt="gpt-tiny", bert="bert-tiny", layers=2, width=64, heads=1, context=256),
    Size(gpt="gpt-tiny", bert="bert-tiny", layers=2, width=128, heads=2, context=256),
    Size(gpt="gpt-tiny", bert="bert-tiny", layers=3, width=192, heads=3, context=256),
    Size(gpt="gpt-tiny", bert="bert-tiny", layers=4, width=256, heads=4, context=256),
    Size(gpt="gpt-small", bert="bert-small", layers=6, width=384, heads=6, context=512),
    Size(gpt="gpt-small", bert="bert-small", layers=8, width=512, heads=8, context=512),
    Size(gpt="gpt-small", bert="bert-small", layers=12, width=768, heads=12, context=512),
)


class Setting(NamedTuple):
    """A size of model, and a batch."""

    size: Size
    batch_factor: int = 1
    """The batch as a multiple of the recipe's"""

    @property
    def batch_tokens(self) -> int:
        """The tokens of a batch of a decoder."""
        return self.batch_factor * recipe_batch(self.size.gpt)

    def is_within(self, other: "Setting") -> bool:
        """Return whether neither the model nor the batch is larger than another setting's."""
        smaller = self.size.layers <= other.size.layers and self.size.width <= other.size.width
        return smaller and self.batch_tokens <= other.batch_tokens

    def flops_of_step(self) -> float:
        """Return the approximate FLOPs of a step with USUAL_VOCABULARY entries."""
        return 6 * self.size.parameters(USUAL_VOCABULARY) * self.batch_tokens


@cache
def recipe_batch(name: str) -> int:
    """Return the tokens of a batch of a recipe."""
    return load_recipe(name).train.batch_tokens


@dataclass(frozen=True)
class Budget:
    """The training of one model on a machine: a time, unless a number of tokens or of FLOPs is given."""

    seconds: float
    flops_per_second: float
    """The speed that large models reach, in large batches on a GPU"""
    tokens: int | None = None
    flops: float | None = None
    measured: Mapping[Setting, float] = field(default_factory=dict)
    """Measured training speeds in FLOP/s; 0 for a model that does not fit the memory"""
    batch_factors: Sequence[int] = (1,)
    """The batches to choose from, as multiples of a recipe's. Larger ones pay where small ones leave a GPU idle."""
    parameters_per_token: int = PARAMETERS_PER_TOKEN["gpt"]
    """The most parameters of a model wider than ALWAYS_SUITABLE_WIDTH for each token of the text"""

    def tokens_of(self, setting: Setting, vocab_size: int) -> float:
        """Return about how many tokens a model trains on."""
        flops = self.flops or self.seconds * self.speed(setting)
        return self.tokens or flops / (6 * setting.size.parameters(vocab_size))

    def speed(self, setting: Setting) -> float:
        """Return the measured training speed in FLOP/s, or the highest that other measurements allow.

        No step takes less time than one of a smaller model or batch, and none is slower in FLOP/s.
        """
        if setting in self.measured:
            return self.measured[setting]
        bounds = [self.flops_per_second]
        for other, flops in self.measured.items():
            if flops and setting.is_within(other):
                bounds.append(flops)
            if other.is_within(setting):
                bounds.append(flops * setting.flops_of_step() / other.flops_of_step())
        return min(bounds)


@dataclass(frozen=True)
class Choice:
    """A vocabulary, a context, a size of model and a batch for a text."""

    vocab_size: int
    context_length: int
    setting: Setting
    read_bytes: int
    """Distinct bytes of text that the training reads"""

    @property
    def size(self) -> Size:
        return self.setting.size

    @property
    def parameters(self) -> int:
        return self.size.parameters(self.vocab_size)


def check_enough(text: TextFacts, name: str) -> None:
    """Raise ValueError if the text called `name` or one of its splits is too short, or has no validation text."""
    if text.train_bytes < LEAST_BYTES:
        raise ValueError(
            f"{name} has {text.train_bytes:,} bytes of text to train on, and a model needs at least {LEAST_BYTES:,}: "
            "give more text; from about 1 MB on, a model writes words"
        )
    if text.least_bytes < LEAST_SPLIT_BYTES:
        raise ValueError(
            f"the smallest split of {name} has only {text.least_bytes} bytes of text, but needs at least "
            f"{LEAST_SPLIT_BYTES}: give this split more text, or leave its files out"
        )
    if not text.validation_bytes:
        raise ValueError(
            f"the split validation of {name} is empty under the rule {text.split_rule}: use `split='tail:0.1'`"
        )


def choose(text: TextFacts, budget: Budget) -> Choice:
    """Return the choice for a text: the model with the lowest loss after the tokens of the budget.

    Only models that suit the text, or the number of tokens of the budget, are considered.
    """
    settings = [Setting(*pair) for pair in product(SIZES, budget.batch_factors)]
    choices = [choice_of(text, budget, setting) for setting in settings]
    suitable = [choice for choice in choices if _suits(choice, text, budget)]
    return min(suitable, key=lambda each: _loss(each, text, budget))


def measured_budget(text: TextFacts, budget: Budget, speed: Callable[[Choice], float]) -> Budget:
    """Return `budget` with the speeds that `speed` measures, in FLOP/s; 0 is a model that does not fit the memory.

    The smallest setting is measured first, then the best setting by the speeds so far, until the best one is already
    measured.
    """
    setting = Setting(SIZES[0])
    while setting not in budget.measured:
        found = speed(choice_of(text, budget, setting))
        budget = replace(budget, measured={**budget.measured, setting: found})
        # On a CPU an unmeasured size counts as fast as the last one. Measuring all sizes gave one that is too large for
        # a minute (docs/training.md).
        if found and len(budget.batch_factors) == 1:
            budget = replace(budget, flops_per_second=found)
        setting = choose(text, budget).setting
    return budget


def _loss(choice: Choice, text: TextFacts, budget: Budget) -> float:
    """Return the bits per byte that the law predicts; infinite for a model that does not fit the memory."""
    tokens, setting = _tokens(choice, text, budget), choice.setting
    if not tokens:
        return math.inf
    return LAW.loss(choice.parameters, equal_tokens(tokens, setting.batch_tokens, recipe_batch(setting.size.gpt)))


def _suits(choice: Choice, text: TextFacts, budget: Budget) -> bool:
    """Return whether a model is small enough for the text, and for the tokens that were asked for."""
    if choice.size.width <= ALWAYS_SUITABLE_WIDTH:
        return True
    if budget.tokens is not None:
        return choice.parameters <= LAW.size_for(_tokens(choice, text, budget))
    return choice.parameters <= budget.parameters_per_token * text.train_bytes / bytes_per_token(choice.vocab_size)


def tokens_for(choice: Choice, text: TextFacts, budget: Budget, kind: Kind = "gpt") -> float:
    """Return about how many tokens a model trains on: the number asked for, or what the budget and `EPOCHS` allow."""
    return budget.tokens or _tokens(choice, text, budget, kind)


def _tokens(choice: Choice, text: TextFacts, budget: Budget, kind: Kind = "gpt") -> float:
    """Return about how many tokens a model trains on within the budget and `EPOCHS` epochs."""
    return min(
        budget.tokens_of(choice.setting, choice.vocab_size),
        EPOCHS[kind] * text.train_bytes / bytes_per_token(choice.vocab_size),
    )


def bytes_per_token(vocab_size: int) -> float:
    """Return about how many bytes of text a token has."""
    return 1.0 if vocab_size <= BYTE_VOCABULARY else 1.0 + 0.25 * (vocab_size // 256).bit_length() ** 1.4


def choice_of(text: TextFacts, budget: Budget, setting: Setting) -> Choice:
    """Return the choice with a size and a batch.

    The more text the training reads, the more entries are seen often enough.
    """
    vocab_size = BYTE_VOCABULARY
    read = round(min(text.train_bytes, budget.tokens_of(setting, vocab_size) * bytes_per_token(vocab_size)))
    large = sum(text.scripts.get(name, 0.0) for name in LARGE_SCRIPTS) > 0.3
    for entries, least in VOCABULARIES:
        entries *= 2 if large else 1
        seen = min(text.train_bytes, budget.tokens_of(setting, entries) * bytes_per_token(entries))
        if seen < least:
            break
        vocab_size, read = entries, round(seen)
    return Choice(vocab_size, _context_length(text, vocab_size, setting.size.context), setting, read)


def _context_length(text: TextFacts, vocab_size: int, most: int) -> int:
    """Return the tokens of a block.

    They are not many more than a document has, and few enough for several validation blocks and one of each split.
    """
    documents = 2 * text.typical_bytes / bytes_per_token(vocab_size)
    validation = text.validation_bytes / bytes_per_token(vocab_size) / LEAST_VALIDATION_BLOCKS
    shortest_split = text.least_bytes / bytes_per_token(vocab_size) / 2
    length = most
    while length > max(LEAST_CONTEXT, min(documents, validation, shortest_split)):
        length //= 2
    return length


def recipe_name(kind: Kind, choice: Choice) -> str:
    """Return the name of the recipe that `recipe_for` changes."""
    name: str = getattr(choice.size, kind)
    return name


def recipe_for(kind: Kind, choice: Choice) -> Recipe:
    """Return the recipe of a kind of model; `with_length` then sets its length, and `with_rates` its learning rates."""
    base, size = load_recipe(recipe_name(kind, choice)), choice.size
    context = choice.context_length + (2 if kind == "bert" else 0)  # an encoder reads two tokens around a block
    model = replace(
        base.model,
        layers=size.layers,
        width=size.width,
        heads=size.heads,
        mlp_width=base.model.mlp_width * size.width // base.model.width,  # 0 stays 0
        context_length=context,
    )
    return with_batch(replace(base, model=model), choice.setting.batch_factor)


def with_batch(recipe: Recipe, factor: float) -> Recipe:
    """Return `recipe` with a batch `factor` times as large.

    AdamW's second moment forgets at the same speed per token (Marek et al. 2025), up to LEAST_BETA2.
    """
    if factor == 1:
        return recipe
    train = recipe.train
    beta2 = max(1 - factor * (1 - train.beta2), min(train.beta2, LEAST_BETA2))
    batch_tokens = round(factor * train.batch_tokens)
    return replace(recipe, train=replace(train, batch_tokens=batch_tokens, micro_batch=0, beta2=round(beta2, 4)))


def with_length(recipe: Recipe, tokens: int, minutes: float = 0.0) -> Recipe:
    """Return `recipe` for `tokens` tokens, at least two steps.

    With `minutes` the training ends by time, in which it reads about `tokens` tokens.
    The best checkpoint of ten validations is kept.
    """
    tokens = max(tokens, 2 * recipe.train.batch_tokens)
    train = replace(
        recipe.train,
        tokens=tokens,
        minutes=minutes,
        warmup_tokens=tokens // 20,
        validate_every_tokens=tokens // 10,
        checkpoint_every_tokens=tokens // 5,
        keep_best=True,
    )
    return replace(recipe, train=train)


def with_rates(recipe: Recipe, name: str) -> Recipe:
    """Return `recipe`, a variant of the recipe `name`, with the learning rates that suit its tokens and batch.

    Muon's rate is that of `muon_rate`, but not below the recipe's. It grows with the root of the batch (Malladi et al.
    2022), up to HIGHEST_RATE. AdamW's keeps its ratio to Muon's.
    """
    train = recipe.train
    factor = math.sqrt(train.batch_tokens / recipe_batch(name))
    if name == RATED_RECIPE:
        factor *= max(1.0, muon_rate(train.tokens) / train.muon_lr)
    factor = max(1.0, min(factor, HIGHEST_RATE / train.muon_lr))
    if factor == 1:
        return recipe
    # Two digits, because `train` prints the rates in the command that trains the model alone.
    lr, muon_lr = (float(f"{factor * rate:.2g}") for rate in (train.lr, train.muon_lr))
    return replace(recipe, train=replace(train, lr=lr, muon_lr=muon_lr))


def with_decay(recipe: Recipe, text_tokens: int) -> Recipe:
    """Return a decoder's recipe with the weight decay for its number of passes over a text of `text_tokens` tokens.

    The decay is inversely proportional to the steps of an epoch (Wang and Aitchison 2024).
    """
    train = recipe.train
    if recipe.objective != "next-token" or train.tokens < REPEATED * text_tokens:
        return recipe
    steps = DECAY_EPOCHS * text_tokens / train.batch_tokens
    decay = min(MOST_DECAY, 1 / (steps * (train.muon_lr or train.lr)))
    return replace(recipe, train=replace(train, weight_decay=max(train.weight_decay, round(decay, 2))))
