"""The evaluation of a run: every split of its plans is scored and measured, and added to evaluation.json."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

from lm.introspection.activations import Edit, observed
from lm.introspection.deletion import deletions
from pipelines.cli.waiting import doing
from pipelines.evaluation.corpus_text import CorpusText
from pipelines.evaluation.deletion import part_means
from pipelines.evaluation.measurement import Measurement, Result
from pipelines.evaluation.measurements.against import Comparison
from pipelines.evaluation.measurements.ngrams import Baselines
from pipelines.evaluation.measurements.trained_text import TrainingText
from pipelines.evaluation.planning import Plan, mean_entry, objective_of
from pipelines.evaluation.results import Evaluation, Measured, SplitEvaluation, add_to_file
from pipelines.evaluation.scoring import score
from pipelines.evaluation.split import Split
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from pipelines.run.provenance import provenance


def measure(*plans: Plan) -> tuple[Evaluation, list[ValueError]]:
    """Measure the splits of the plans of one run, and add them to evaluation.json unless parts are deleted.

    Returns all evaluations of the run, and the errors of measurements that failed, such as a comparison with a diverged
    run. The other measurements are kept.
    """
    run = plans[0].run
    opened = [dataset for plan in plans for dataset in (plan.dataset, plan.training)]
    failures: list[ValueError] = []
    measured = [[_measured(split, failures) for split in _splits(plan, opened)] for plan in plans]
    added = [evaluation for of_plan in measured for evaluation in of_plan]
    if len(plans) > 1:
        shares = [plan.share for plan in plans]
        of_splits = zip(plans[0].splits, zip(*measured, strict=True), strict=True)
        added = [*(_mean(run, mean_entry(plans[0], split), shares, sources) for split, sources in of_splits), *added]
    if plans[0].options.without:  # evaluation.json describes the whole model
        return Evaluation(run.name, {}).adding(added), failures
    return add_to_file(run, added), failures


def _splits(plan: Plan, opened: Iterable[Any]) -> Iterator[Split]:
    """Yield the splits of a plan with the model that scores them. `opened`: datasets that are already open."""
    run, options, tokenizer = plan.run, plan.options, plan.run.tokenizer()
    trained = load_trained(run, options.device, options.dtype, options.checkpoint, needs="float64")
    others: Iterator[Split | None] = _splits(plan.other, [plan.other.dataset]) if plan.other else repeat(None)
    objective = objective_of(run, plan.windows.window, tokenizer)
    doing("fitting the baselines")
    baselines = Baselines.fit(plan.training, objective) if plan.training else None
    training_text = TrainingText.of(run, opened)
    for (name, stream), other in zip(plan.splits.items(), others, strict=False):
        yield Split(plan, name, stream, trained, tokenizer, objective, baselines, training_text, other)


def _measured(split: Split, failures: list[ValueError]) -> SplitEvaluation:
    """Return the evaluation of a split, and add the errors of measurements that failed to `failures`."""
    started, plan = time.perf_counter(), split.plan
    chosen = plan.options.measurements
    observers = {kind: observer for kind in chosen if (observer := kind.observer(split))}
    failed: dict[Measurement, ValueError] = {}
    with observed(split.model, edits=_deletions(split)):
        scored = score(split, observers, failed)
    results: list[Result] = []
    for kind in chosen:
        try:
            if kind not in failed and (
                result := observers[kind].result(scored) if kind in observers else kind.measure(scored)
            ):
                results.append(result)
        except ValueError as error:
            failed[kind] = error
    failures += failed.values()
    dataset, checkpoint = plan.dataset, split.trained.checkpoint
    compared = any(isinstance(result, Comparison) for result in results)
    measured = Measured(
        checkpoint=checkpoint.name,
        checkpoint_sha256=plan.run.weights_sha256(checkpoint),
        data=dataset.source if isinstance(dataset, CorpusText) else str(dataset.place.resolve()),
        dataset_fingerprint=dataset.fingerprint,
        tokenizer_fingerprint=dataset.tokenizer_fingerprint,
        against=str(plan.other.run.folder) if plan.other and compared else None,
        **provenance(split.trained.machine.device),
        seconds=round(time.perf_counter() - started, 3),
    )
    return SplitEvaluation(plan.entry(split.name), tuple(results), measured)


def _deletions(split: Split) -> dict[str, Edit]:
    """Return the edits that delete the parts of the model that the options name."""
    options = split.plan.options
    if not options.without:
        return {}
    means = part_means(split.model, options.without, split.plan, options.zero)
    return deletions(split.model, options.without, means)


def _mean(run: Run, split: str, shares: Sequence[float], sources: Sequence[SplitEvaluation]) -> SplitEvaluation:
    """Return the evaluation of a mixture, from the evaluations of its sources on the same split."""
    first = sources[0]
    means: list[Result] = []
    for one in first.results:
        kind = type(one)
        of_sources = [result for source in sources if (result := source.find(kind))]
        if len(of_sources) == len(sources) and (mean := kind.mean(shares, of_sources)):
            means.append(mean)
    measured = replace(
        first.measured,
        data=" ".join(run.facts["data"]),
        dataset_fingerprint=run.facts["dataset_fingerprint"],
        seconds=round(sum(source.measured.seconds for source in sources), 3),
    )
    return SplitEvaluation(split, tuple(means), measured)
