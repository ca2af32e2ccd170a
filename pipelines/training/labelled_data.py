"""The labelled texts of a classifier, and the run that it can be trained from. Imports no torch."""

import warnings
from dataclasses import dataclass
from pathlib import Path

from corpora.labelled import LabelledTexts, read_labelled
from lm.config import WITHOUT_DROPOUT
from pipelines.recipes.config import FinetuneConfig
from pipelines.run.folder import Run
from pipelines.run.text_ids import text_ids
from pipelines.training.batch_objectives import require_special_tokens
from tokenizer import CLS, SEP


@dataclass(frozen=True, kw_only=True)
class LabelledData:
    """The source of labelled texts, and how they are split; see `finetune` for the fields."""

    data: Path
    test: Path | None
    text_field: str
    label_field: str
    held_out: float

    def read(self) -> tuple[LabelledTexts, LabelledTexts]:
        """Return the texts to train and to test on; ValueError if they teach or test nothing."""
        train = read_labelled(self.data, self.text_field, self.label_field)
        if len(set(train.labels)) < 2:
            raise ValueError(f"all texts of {self.data} have the label {train.labels[0]!r}: give some with another")
        if self.test is not None:
            test = read_labelled(self.test, self.text_field, self.label_field)
            trained_on = set(train.texts)
            if known := sum(text in trained_on for text in test.texts):
                warnings.warn(
                    f"{known:,} of the {len(test):,} texts of {self.test} are in {self.data} too: their accuracy says "
                    "little about other texts",
                    stacklevel=4,
                )
        elif 0 < self.held_out < 1:
            train, test = train.hold_out(self.held_out)
        else:
            raise ValueError(f"`held_out` is {self.held_out}: give a share above 0 and below 1, or a file for `test`")
        if not len(test):
            raise ValueError(
                f"no text of {self.data} is held out: raise `held_out` from {self.held_out:g}, or a file for `test`"
            )
        if unknown := set(test.labels) - set(train.labels):
            label = min(unknown, key=repr)
            raise ValueError(
                f"{self.test} has the label {label!r}, which no text of {self.data} has: remove it, or add training "
                "texts with it"
            )
        return train, test


def check_encoder(run: Run, config: FinetuneConfig) -> None:
    """Raise ValueError if no classifier can be trained from a run."""
    if run.recipe.model.architecture != "encoder":
        raise ValueError(
            f"{run.folder} has a model of architecture {run.recipe.model.architecture!r}, but a classifier is trained "
            "from an encoder, such as that of bytelm pretrain bert-tiny"
        )
    if config.dropout and run.recipe.model.attention in WITHOUT_DROPOUT:
        raise ValueError(
            f"{run.folder} has model.attention = {run.recipe.model.attention!r}, which has no dropout, but `dropout` "
            f"is {config.dropout:g}: give `dropout=0`"
        )
    require_special_tokens("a classifier", (CLS, SEP), text_ids(run, run.tokenizer()).special)
