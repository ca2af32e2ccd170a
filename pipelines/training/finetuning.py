"""Fine-tuning: train a run for a task, from the weights of another run or from random weights."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from lm.layer_order import freeze, reinitialize
from lm.lora import add_lora, merge_lora
from lm.lora_config import LoraConfig
from lm.new_entries import with_new_entries
from lm.task_model import TaskModel, TrainedModel, build_model
from pipelines.cli.display import answer, say
from pipelines.cli.process import StoppedBySignal
from pipelines.evaluation.measurement import Result
from pipelines.evaluation.planning import EvaluationOptions, TaskPlan
from pipelines.evaluation.results import Evaluation
from pipelines.evaluation.task_evaluation import measure_task
from pipelines.exchange.task_export import exported_head
from pipelines.machine import choose_machine, cores_per_operation, freed_memory_returned, without_subnormals
from pipelines.recipes.recipe import Recipe
from pipelines.run.folder import Run, check_folder
from pipelines.run.predictor import Predictor
from pipelines.run.retention import checkpoint_folders
from pipelines.tasks.comparison import BEFORE, SCRATCH
from pipelines.tasks.data import EncodedTask, ExampleFiles, fingerprint
from pipelines.training.batch import ALL_ROWS, Shard
from pipelines.training.batch_loss import summed_loss
from pipelines.training.data import Score
from pipelines.training.init_from import GIVEN, Source, reopen, source_of
from pipelines.training.launch import processes
from pipelines.training.loop import Trainer
from pipelines.training.parallel import Kind
from pipelines.training.task_data import TaskData
from pipelines.training.timing import measured_speed
from pipelines.training.training_run import Training, run_training


def train(run: Run, work: EncodedTask, files: ExampleFiles, out: Path, parallel: Kind, from_scratch: bool) -> int:
    """Train the recipe of `work` in the run folder `out`. Return the exit status, as `pretraining.train` does.

    Raises ValueError if `out` holds a run with another start.
    """
    recipe = work.recipe
    if (out / "config.toml").exists():
        _check_same_start(Run(out), work, None if from_scratch else run)
    source = None if from_scratch or checkpoint_folders(out) else Source.open(run.folder)
    origin = {} if from_scratch else source.facts if source else {"init_from": str(run.folder.resolve())}
    facts = {
        **files.facts(),
        "dataset_fingerprint": fingerprint(work.training, work.validation),
        "tokenizer_fingerprint": work.reader.tokenizer.fingerprint,
        "separated": run.facts.get("separated", True),
        "pretrained": str(run.folder.resolve()),
        **{name: run.facts[name] for name in GIVEN if name in run.facts},
        **origin,
        **work.facts,
    }
    with (
        freed_memory_returned(),
        without_subnormals(),
        cores_per_operation(0),
        processes(parallel, recipe.train) as group,
    ):

        def weights() -> Mapping[str, Tensor] | None:
            return source.weights if source else starting_weights(out, run.folder)

        data = task_data(prepared(work, weights), out, group.shard)
        lines = [source.summary()] if source else ["starts from random weights"] if from_scratch else []
        lines += new_tokens(work) if source else []

        def build() -> TrainedModel:
            return initial_model(work, source.weights if source else None)

        return run_training(Training(recipe, work.reader.tokenizer, data, build, facts, lines), out, group)


def _check_same_start(held: Run, work: EncodedTask, source: Run | None) -> None:
    """Raise ValueError if the fine-tuned run `held` has another tokenizer or teacher, or another start than `source`.

    Under the recorded path the source may have changed if the run resumes from a checkpoint of its own.
    """
    if held.recipe.task is None or "imported_from" in held.facts:
        return  # opening the run to resume it raises an error
    own, asked = held.facts["tokenizer_fingerprint"], work.reader.tokenizer.fingerprint
    if own != asked:
        raise ValueError(
            f"{held.folder} holds another run: its tokenizer has the fingerprint {own[:16]}, not {asked[:16]}; choose "
            "another `out`"
        )
    learned, teaches = (facts.get("teacher_sha256") for facts in (held.facts, work.facts))
    if learned and learned != teaches:
        raise ValueError(
            f"{held.folder} learned from other weights of a teacher: give the same teacher with the same checkpoint, "
            "or choose another `out`"
        )
    origin, folder = held.facts.get("init_from"), None if source is None else str(source.folder.resolve())
    if folder == origin:
        if source and not checkpoint_folders(held.folder):
            reopen(held)  # raises an error if the source has changed
        return
    if source and origin and Source.open(source.folder).facts["init_from_sha256"] == held.facts["init_from_sha256"]:
        return  # the source has moved
    had, given = (f"the weights of {one}" if one else "random weights" for one in (origin, folder))
    raise ValueError(f"{held.folder} holds another run: it started from {had}, not from {given}; choose another `out`")


def print_plan(run: Run, work: EncodedTask, files: ExampleFiles, out: Path, from_scratch: bool) -> None:
    """Print the examples, the settings and the time of a fine-tuning; ValueError if `out` holds another run."""
    recipe, parts = work.recipe, (work.encoded_training, work.encoded_validation)
    assert recipe.task is not None and recipe.finetune is not None
    if (out / "config.toml").exists():
        _check_same_start(Run(out), work, None if from_scratch else run)
    facts = {**files.facts(), "dataset_fingerprint": fingerprint(work.training, work.validation)}
    check_folder(out, recipe, facts, work.reader.tokenizer)
    cut = sum(len({one.origin for one in part if one.cut}) for part in parts)
    settings = recipe.finetune
    answer(
        f"would fine-tune {run.folder} for {recipe.task.name} on {len(work.training):,} examples, {settings.epochs} "
        f"epochs in batches of {settings.batch_size}, and test it on {len(work.validation):,}; {cut:,} are cut"
    )
    model = initial_model(work, None)
    speed = measured_speed(recipe, lambda: model, task_data(prepared(work, lambda: None), out))
    answer(speed.time_of(recipe.train.tokens))
    if recipe.head is not None:
        answer(_export(work, run))
    answer(f"would {'resume the run' if checkpoint_folders(out) else 'make a run'} in {out}")


def _export(work: EncodedTask, run: Run) -> str:
    """Return a sentence that says whether a class of transformers can express the fine-tuned model."""
    try:
        found = exported_head(work.recipe, work.reader.tokenizer, run.facts)
    except ValueError as error:
        return f"export-hf could not write the run: {error}"
    return f"export-hf could write the run as {found.auto_class}"


def evaluate(
    run: Run, work: EncodedTask, out: Path, from_scratch: bool, compare_scratch: bool, seeds: int
) -> tuple[TaskPlan, Evaluation]:
    """Measure the fine-tuned run in `out` and compare it with others.

    Others are the initial `run` (if the task compares it), the same model trained from random weights, and the same
    training with other seeds.
    """
    task, settings, seed, further, by_seed = work.recipe.task, work.recipe.finetune, work.recipe.train.seed, {}, {}
    assert task is not None and settings is not None
    if "before" in task.compared_with and not from_scratch:
        machine = choose_machine(work.recipe.train.device, "float32")
        whole = replace(work, recipe=replace(work.recipe, finetune=replace(settings, reinit=0)))
        before = initial_model(whole, Source.open(run.folder).weights).to(machine.device)
        further[BEFORE] = _first_result(work, out, before.eval())
    if compare_scratch and not from_scratch:
        say("the same model from random weights, for comparison:")
        further[SCRATCH] = _first_result(work, out, train_in_memory(work, out, seed))
    for other in range(seed + 1, seed + seeds):
        say(f"the same training with seed {other}:")
        weights = None if from_scratch else Source.open(run.folder).weights
        by_seed[other] = _first_result(work, out, train_in_memory(work, out, other, weights))
    plan = TaskPlan(Run(out), (), EvaluationOptions())
    return plan, measure_task(plan, further, by_seed)


def _first_result(work: EncodedTask, out: Path, model: TrainedModel) -> Result:
    """Return the first result of a model on the validation examples. `out`: folder of the fine-tuned run."""
    task = work.recipe.task
    assert task is not None
    predictor = Predictor(Run(out), plain_model(work.recipe, model), task)
    outputs = task.outputs(predictor, work.encoded_validation)
    return task.results(outputs, work.encoded_validation, work.validation)[0]


def train_in_memory(
    work: EncodedTask, out: Path, seed: int, weights: Mapping[str, Tensor] | None = None
) -> TrainedModel:
    """Train the model of `work` with `seed` from `weights`, and return it in evaluation mode. None: random weights.

    Raises KeyboardInterrupt after Ctrl-C or SIGTERM.
    """
    recipe = replace(work.recipe, train=replace(work.recipe.train, seed=seed))
    assert recipe.finetune is not None
    settings = replace(recipe.finetune, seed=seed)  # it decides the order of the examples
    recipe = replace(recipe, finetune=settings)
    if weights is None:  # random weights must train
        recipe = replace(recipe, finetune=replace(settings, freeze=0, reinit=0), lora=LoraConfig())
    machine = choose_machine(recipe.train.device, recipe.train.dtype, half=True)
    model = initial_model(replace(work, recipe=recipe), weights).to(machine.device)
    model.compute_dtype = machine.dtype
    with freed_memory_returned(), without_subnormals():
        data = task_data(prepared(replace(work, recipe=recipe), lambda: weights), out)
        at = Trainer(None, model, data, recipe.train).train()
    if at.signal:
        raise StoppedBySignal(at.signal)
    model.compute_dtype = torch.float32
    return plain_model(recipe, model).eval()


def plain_model(recipe: Recipe, model: TrainedModel) -> TrainedModel:
    """Return an equivalent model with its adapters merged; without adapters, the model itself."""
    if not recipe.lora.rank:
        return model
    plain = build_model(recipe.model, recipe.head, seed=None).to(model.embedding.weight.device)
    plain.load_state_dict(merge_lora(model.state_dict(), recipe.lora.scale))
    plain.compute_dtype = model.compute_dtype
    return plain.eval()


def prepared(work: EncodedTask, weights: Callable[[], Mapping[str, Tensor] | None]) -> EncodedTask:
    """Return `work` with values that the loss needs from the initial model, which has these `weights`."""
    task, recipe = work.recipe.task, work.recipe
    assert task is not None

    @cache
    def start() -> TrainedModel:
        device = choose_machine(recipe.train.device, "float32").device
        return initial_model(work, weights()).to(device).eval()

    training, validation = (task.prepare(part, start) for part in (work.encoded_training, work.encoded_validation))
    return replace(work, encoded_training=training, encoded_validation=validation)


def starting_weights(out: Path, source: Path) -> Mapping[str, Tensor] | None:
    """Return the initial weights of the run in `out`, which are those of the run in `source`; None if random.

    Raises ValueError if they no longer exist.
    """
    if not (out / "config.toml").exists() or "init_from" not in Run(out).facts:
        return None
    return source_of(Run(out), source).weights


def task_data(work: EncodedTask, out: Path, shard: Shard = ALL_ROWS) -> TaskData:
    """Return the batches of a fine-tuning in the run folder `out`."""
    task, config = work.recipe.task, work.recipe.finetune
    assert task is not None and config is not None
    loss = task.loss(work.reader) or summed_loss
    score = partial(_score, work, out) if config.patience else None
    return TaskData(work.encoded_training, work.encoded_validation, config.batch_size, config.seed, shard, loss, score)


def _score(work: EncodedTask, out: Path, model: TrainedModel) -> Score:
    """Return the first number of the task that is defined on the validation examples."""
    task = work.recipe.task
    assert task is not None
    first = _first_result(work, out, model)
    headlines = ((shown.name, getattr(first, key)) for key, shown in first.numbers().items() if shown.headline)
    name, value = next((name, value) for name, value in headlines if value is not None)
    return name, value, task.better == "highest"


def initial_model(work: EncodedTask, weights: Mapping[str, Tensor] | None) -> TrainedModel:
    """Return the model of `work` with the `weights` of a language model.

    Other weights are random, except embeddings of new special tokens, which are the mean of all others.
    """
    recipe, settings = work.recipe, work.recipe.finetune
    assert settings is not None
    model = build_model(recipe.model, recipe.head, recipe.train.seed)
    body = model.body if isinstance(model, TaskModel) else model
    if weights is not None:
        if work.reader.tokenizer.vocab_size > work.known_entries:
            weights = with_new_entries(weights, body, work.known_entries)
        if isinstance(model, TaskModel):
            model.load_body(weights)
        else:
            model.load_state_dict(weights)
        reinitialize(model, settings.reinit, recipe.train.seed)
    freeze(model, settings.freeze)  # also if a checkpoint has the weights
    add_lora(model, recipe.lora, recipe.train.seed)
    return model


def new_tokens(work: EncodedTask) -> list[str]:
    """Return a line about the special tokens that a task adds, if any."""
    tok = work.reader.tokenizer
    added = [name for name, i in tok.special_tokens.items() if i >= work.known_entries]
    if not added:
        return []
    return [f"new special tokens {' '.join(added)}: their weights begin as the mean of the others"]
