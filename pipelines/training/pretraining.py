"""A pretraining run: check that recipe, dataset, run folder and machine fit together, then train."""

from pathlib import Path

from lm.config_costs import ITEMSIZE
from lm.costs import flops_per_token, meta_model
from lm.lora import add_lora
from lm.mixers.mixer import check_mixers
from lm.model import LanguageModel
from lm.optim.optimizer_settings import OPTIMIZERS
from pipelines.cli.display import answer, quantity
from pipelines.exchange.possible_exports import possible_exports
from pipelines.machine import cores_per_operation, freed_memory_returned, precision, without_subnormals
from pipelines.recipes.recipe import Recipe
from pipelines.run.folder import check_folder
from pipelines.run.retention import checkpoint_folders
from pipelines.run.sources import Sources, spell
from pipelines.training.data import open_training_data
from pipelines.training.init_from import find_start, shared_start
from pipelines.training.launch import processes
from pipelines.training.mixture import Dataset, fit_to_data, open_sources
from pipelines.training.model_costs import model_costs
from pipelines.training.parallel import Kind, OneProcess
from pipelines.training.timing import training_speed
from pipelines.training.training_run import Training, batches, resume_command, run_training
from pipelines.training.word_budget import word_lines
from tokenizer import Tokenizer


def train(recipe: Recipe, sources: Sources, out: Path, parallel: Kind, init_from: Path | None = None) -> int:
    """Train the model of `recipe` in this process, or in the processes that torchrun started; see `pretrain`."""
    group, threads = processes(parallel, recipe.train), recipe.train.threads
    with freed_memory_returned(), without_subnormals(), cores_per_operation(threads), group as strategy:
        return _train(recipe, sources, out, strategy, init_from)


def _train(recipe: Recipe, sources: Sources, out: Path, parallel: OneProcess, init_from: Path | None) -> int:
    mixture = open_sources(sources, recipe.objective)
    dataset = mixture.first
    tok = _tokenizer(dataset)
    if parallel.broadcast(mixture.fingerprint) != mixture.fingerprint:
        raise ValueError(
            f"{spell(sources)} is other data on rank {parallel.rank} than on rank 0: give all ranks the same"
        )
    start = shared_start(recipe, dataset, out, init_from, parallel)
    recipe = _fit(recipe, dataset, out, start.vocab_size)
    data = open_training_data(recipe, mixture, tok, parallel.shard, start.facts)

    def build() -> LanguageModel:
        model = LanguageModel(recipe.model, recipe.train.seed)
        start.load(model, parallel)
        add_lora(model, recipe.lora, recipe.train.seed)
        return model

    facts = {
        "data": spell(sources),
        "dataset_fingerprint": mixture.fingerprint,
        "tokenizer_fingerprint": tok.fingerprint,
        "separated": dataset.info.get("separator") is not None,
        **start.facts,
    }
    tokens = None if recipe.train.minutes else recipe.train.tokens
    lines = [*word_lines(recipe.train), *mixture.lines(tokens), *start.lines(recipe)]
    return run_training(Training(recipe, tok, data, build, facts, lines), out, parallel)


def print_plan(recipe: Recipe, sources: Sources, out: Path, init_from: Path | None = None) -> None:
    """Print the work that `recipe` takes on the data of `sources`, its size and its output path.

    Raises ValueError, as the training does, if the dataset is damaged or if `out` holds another run.
    """
    mixture = open_sources(sources, recipe.objective)
    dataset = mixture.first
    tok = _tokenizer(dataset)
    start = find_start(recipe, dataset, out, init_from)
    recipe = _fit(recipe, dataset, out, start.vocab_size)
    check_mixers(recipe.model)
    check_folder(out, recipe, {"data": spell(sources), "dataset_fingerprint": mixture.fingerprint}, tok)
    open_training_data(recipe, mixture, tok, facts=start.facts)  # checks special tokens
    train = recipe.train
    available = sum(dataset.split("train").tokens for dataset in mixture.datasets)
    trained, flops, memory = _training_costs(recipe)
    checkpoint = memory["weights"] * (2 if train.average else 1) + memory["moments"]
    retained = train.keep_checkpoints + train.keeps_best
    with without_subnormals(), cores_per_operation(train.threads), precision(train):
        speed = training_speed(recipe, mixture, start.facts)
    tokens = 60 * train.minutes * speed.tokens_per_second if train.minutes else train.tokens
    length = f"{'about ' if train.minutes else ''}{quantity(tokens, 'tok')}"
    answer(
        f"would train {quantity(trained, '')} parameters on {length} of {' and '.join(map(str, sources))} "
        f"({tokens / available:.3g} epochs of {quantity(available, 'tok')}), in batches of {batches(recipe)}"
    )
    time = f"training ends after {train.minutes:g} minutes" if train.minutes else speed.time_of(train.tokens)
    answer(f"compute: {quantity(flops * tokens, 'FLOP')}; {time}")
    about = "less than" if train.activation_checkpointing else "about"
    answer(
        f"memory: {quantity(sum(memory[part] for part in ('weights', 'gradients', 'moments')), 'B')} for weights, "
        f"gradients and optimizer, and {about} {quantity(memory['activations'], 'B')} of activations per sequence"
    )
    separated = {"separated": dataset.info.get("separator") is not None}
    exports = possible_exports(recipe.model, tok, separated | start.facts)
    for line in (*word_lines(train), *mixture.lines(tokens), *start.lines(recipe), *exports):
        answer(line)
    state = "resume the run" if checkpoint_folders(out) else "make a run"
    answer(f"would {state} in {out}, with {retained} checkpoints of about {quantity(checkpoint, 'B')} each")


def _training_costs(recipe: Recipe) -> tuple[int, float, dict[str, int]]:
    """Return how many parameters a run trains, its FLOPs per token, and its bytes as in `ModelCosts.training_bytes`."""
    costs = model_costs(recipe.model, "float32", recipe.train.optimizer)
    memory = costs["training_bytes"]
    if not recipe.lora.rank:
        return costs["parameters"]["total"], costs["flops_per_token"], memory
    model = meta_model(recipe.model)
    add_lora(model, recipe.lora)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    size = ITEMSIZE["float32"] * trained  # frozen weights have no gradients and moments
    moments = size * OPTIMIZERS[recipe.train.optimizer].moments  # adapters are matrices of blocks
    changed = {"weights": memory["weights"] + size, "gradients": size, "moments": moments}
    return trained, flops_per_token(model), memory | changed


def _tokenizer(dataset: Dataset) -> Tokenizer:
    """Return the tokenizer of a dataset; ValueError if it is not the one that the dataset was built with."""
    tok = Tokenizer.load(dataset.folder)
    if tok.fingerprint != dataset.tokenizer_fingerprint:
        raise ValueError(
            f"{dataset.place}: its tokenizer.json is not the tokenizer that the dataset was built with "
            f"({tok.fingerprint[:16]} instead of {dataset.tokenizer_fingerprint[:16]}): build the dataset again"
        )
    return tok


def _fit(recipe: Recipe, dataset: Dataset, out: Path, vocab_size: int) -> Recipe:
    """Return `fit_to_data` of the recipe; if `out` has a run, the error also says how to resume it."""
    try:
        return fit_to_data(recipe, dataset, vocab_size)
    except ValueError as error:
        if not (out / "config.toml").exists():
            raise
        raise ValueError(f"{error}; or resume the run with its own settings: {resume_command(recipe, out)}") from None
