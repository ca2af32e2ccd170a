"""A student and its teacher on the same windows of text."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from lm.byte_distributions import byte_groups
from lm.model import LanguageModel
from pipelines.evaluation.documents import known_byte_lengths
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from pipelines.run.two_models import in_batches, sums_of_rows, target_scores
from pipelines.tasks.examples import Encoded
from pipelines.tasks.shared_boundaries import first_bytes
from pipelines.training.batch import Array, Batch
from pipelines.training.batch_loss import target_nats
from pipelines.training.byte_losses import ByteTeacher, byte_divergences, shared_positions, teacher_batch
from tokenizer import Tokenizer


class TeacherScores(NamedTuple):
    """Sums over a window."""

    nats: float
    """-ln p of the teacher's tokens"""
    bytes: int
    """Bytes of the teacher's tokens"""
    kl_bits: float
    """D(teacher || model) of the next token; of the next byte, if the vocabularies differ"""
    compared: int
    """Positions with a divergence"""


class WindowScores(NamedTuple):
    """Sums over the targets of a window, for the model and for its teacher, if there is one."""

    nats: float
    tokens: int
    bytes: int
    teacher: TeacherScores | None


def load_teacher(folder: str) -> LanguageModel:
    """Return the model of a run on the CPU, without gradients. Raises ValueError if the run no longer exists."""
    teacher = load_trained(Run(folder), "cpu").model
    return teacher.requires_grad_(False)


def load_byte_teacher(folder: str, student: Tokenizer, vocab_size: int) -> ByteTeacher:
    """Return a teacher for a model with the tokenizer `student` and `vocab_size` entries; see `load_teacher`."""
    model, tok = load_teacher(folder), Run(folder).tokenizer()
    firsts = first_bytes(tok, model.config.vocab_size), first_bytes(student, vocab_size)
    theirs, ours = (byte_groups(torch.from_numpy(one)) for one in firsts)
    lengths = np.pad(known_byte_lengths(tok), (0, model.config.vocab_size - tok.vocab_size))
    return ByteTeacher(model, theirs, ours, lengths)


def window_scores(
    model: LanguageModel,
    teacher: LanguageModel | ByteTeacher | None,
    encoded: Sequence[Encoded],
    byte_lengths: Array,
    progress: Callable[[int], None] | None = None,
) -> list[WindowScores]:
    """Return the scores of each window by models in evaluation mode. `byte_lengths` (V,): bytes of each token."""
    return in_batches(encoded, partial(_of_batch, model, teacher, byte_lengths), progress)


def _of_batch(
    model: LanguageModel, teacher: LanguageModel | ByteTeacher | None, byte_lengths: Array, batch: Batch
) -> list[WindowScores]:
    scored = batch.weights > 0
    same = teacher if isinstance(teacher, LanguageModel) else None
    found = target_scores(model, same, batch, scored)
    size = sums_of_rows(byte_lengths[batch.targets[scored]], scored).astype(int).tolist()
    tokens = scored.sum(axis=1).tolist()
    theirs: Sequence[TeacherScores | None] = [None] * len(scored)
    if isinstance(teacher, ByteTeacher):
        theirs = _by_bytes(model, teacher, batch)
    elif found.other_nats is not None and found.reverse_kl_bits is not None:
        nats, bits = (sums_of_rows(part, scored).tolist() for part in (found.other_nats, found.reverse_kl_bits))
        theirs = list(map(TeacherScores, nats, size, bits, tokens))
    return list(map(WindowScores, sums_of_rows(found.nats, scored).tolist(), tokens, size, theirs))


@torch.inference_mode()
def _by_bytes(model: LanguageModel, teacher: ByteTeacher, batch: Batch) -> list[TeacherScores]:
    read, (own, _) = teacher_batch(batch), shared_positions(batch)
    scored = read.weights > 0
    nats = target_nats(teacher.model, read, scored).cpu().numpy() if scored.any() else np.zeros(0)
    columns = (
        sums_of_rows(nats, scored),
        sums_of_rows(teacher.byte_lengths[read.targets[scored]], scored).astype(int),
        sums_of_rows(byte_divergences(model, teacher, batch), own),
        own.sum(axis=1),
    )
    return list(map(TeacherScores, *(column.tolist() for column in columns)))
