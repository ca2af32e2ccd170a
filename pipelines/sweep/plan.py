"""The plan of a sweep: the vocabularies, the compute of a run, and the recipe of each run.

All runs have the same architecture and the same FLOPs, which include the output matrix (`lm.costs`). So a model
with a larger vocabulary trains on fewer but longer tokens. The context is fixed in tokens, as in practice,
so a larger vocabulary sees more text at a time. The schedule of the learning rate spans each run's own tokens.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from lm.config import ModelConfig
from lm.costs import flops_per_token, meta_model, non_embedding_parameters, parameter_table
from pipelines.recipes.recipe import Recipe

if TYPE_CHECKING:
    from tokenizer.kinds.registry import Model

# FLOP/s of training on one core in float32; about twice as many on a core that supports bfloat16.
CORE_FLOPS = 5e10
HOUR_FLOPS = 2 * 3600 * CORE_FLOPS  # of 2 cores


class Vocabulary(NamedTuple):
    """A kind of vocabulary and its number of entries."""

    kind: "Model"
    size: int

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.size}"


class SweepRun(NamedTuple):
    """A vocabulary and the seed of a run."""

    vocabulary: Vocabulary
    seed: int

    @property
    def name(self) -> str:
        return f"{self.vocabulary.name}-seed-{self.seed}"


class ModelSize(NamedTuple):
    """The cost of the model with one size of vocabulary."""

    flops_per_token: float
    parameters: int
    embedding: int
    """Parameters of the embedding and of an untied output matrix"""


@dataclass(frozen=True)
class Budget:
    """What all runs of a sweep have in common."""

    recipe: Recipe
    flops: float
    """FLOPs of each run"""

    def __post_init__(self) -> None:
        if self.recipe.objective != "next-token":
            raise ValueError(
                f"`recipe` has the objective {self.recipe.objective}, which has no bits per byte: choose a recipe of a "
                "decoder, such as gpt-tiny"
            )
        if self.recipe.train.batch_tokens_start:
            raise ValueError(
                "`recipe` has growing batches, which a sweep does not support: remove train.batch_tokens_start"
            )
        if not self.flops > 0:
            raise ValueError(f"`flops` is {self.flops:g}, but must be above 0")

    @property
    def step_tokens(self) -> int:
        """Tokens of an optimizer step, in whole blocks."""
        length = self.recipe.model.context_length
        return max(1, round(self.recipe.train.batch_tokens / length)) * length

    def model(self, size: int) -> ModelConfig:
        """Return the model with a vocabulary of `size` entries."""
        return replace(self.recipe.model, vocab_size=size)

    def size(self, size: int) -> ModelSize:
        """Return the cost of the model with a vocabulary of `size` entries."""
        return _size(self.model(size))

    def tokens(self, size: int) -> int:
        """Return the tokens of a run: as many whole steps as the FLOPs allow.

        Raises ValueError if they do not allow one step.
        """
        each = self.size(size).flops_per_token
        tokens = int(self.flops / (each * self.step_tokens)) * self.step_tokens
        if not tokens:
            raise ValueError(
                f"`flops` is {self.flops:.3g}, but one step with a vocabulary of {size:,} entries takes "
                f"{each * self.step_tokens:.3g}: raise `flops`, or leave this size out of `sizes`"
            )
        return tokens

    def recipe_of(self, run: SweepRun) -> Recipe:
        """Return the recipe of a run. Warm-up keeps its share of the tokens, and one thread trains each run."""
        train, tokens = self.recipe.train, self.tokens(run.vocabulary.size)
        return replace(
            self.recipe,
            model=self.model(run.vocabulary.size),
            train=replace(
                train,
                tokens=tokens,
                warmup_tokens=round(tokens * min(1.0, train.warmup_tokens / train.tokens)),
                seed=run.seed,
                threads=1,
                validate_every_tokens=tokens,
                validation_tokens=self.recipe.model.context_length,  # little: `measure` scores the finished run
                checkpoint_every_tokens=max(self.step_tokens, tokens // 4),
                keep_checkpoints=1,
                keep_best=False,
                keep_every_tokens=0,
            ),
        )

    @property
    def non_embedding(self) -> int:
        """Parameters without embeddings, positions and output matrix."""
        return non_embedding_parameters(meta_model(self.model(1)))


@cache
def _size(config: ModelConfig) -> ModelSize:
    model = meta_model(config)
    table = parameter_table(model)
    untied = 0 if model.head.weight is None else model.head.weight.numel()
    return ModelSize(flops_per_token(model), table["total"], table["embedding"] + untied)
