"""Settings of training. Imports no torch.

`TrainConfig` is flat, like its spellings in recipes and on the command line. Groups of settings would need a conversion
between both. They would also slow down --help, by a tenth for seven groups, because tyro reads the source of each
dataclass.
"""

from dataclasses import dataclass
from typing import Literal

from lm.config import SELECTED
from lm.optim.optimizer_settings import OptimizerKind
from lm.optim.schedules import ends_at_peak, multiplier, sequence_length, weight_decay_multiplier
from lm.values import check_fields, check_ranges
from pipelines.recipes.field_checks import require, require_not_negative, require_positive, require_seed

Device = Literal["auto", "cpu", "cuda", "mps"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
MaskedUnit = Literal["token", "word", "span"]

# Fields that may change when a run resumes. Except for rounding, they change neither the data order nor the objective.
# `tokens`, `words` and `minutes` may only grow: the schedules then span the new total.
CHANGEABLE = (
    *("batch_tokens", "batch_tokens_start", "batch_warmup_tokens", "micro_batch"),
    *("tokens", "words", "minutes", "device", "threads", "dtype", "matmul_precision", "deterministic", "compile"),
    *("cuda_graphs", "activation_checkpointing", "whole_gradients"),
    *("validate_every_tokens", "validation_tokens", "checkpoint_every_tokens", "log_every_steps", "tensorboard"),
    *("keep_checkpoints", "keep_best", "keep_every_tokens", "keep_words", "nonfinite", "max_rollbacks", "patience"),
)

# The same of fine-tuning.
CHANGEABLE_FINETUNING = ("epochs", "device", "dtype", "micro_batch", "tensorboard", "patience")

MOST_THREADS = 1024

# Fields by subject for command-line help: common ones, then rare ones.
SUBJECTS = {
    "length and batches": (
        "tokens batch_tokens micro_batch seed",
        "words minutes batch_tokens_start batch_warmup_tokens length_start length_share sampling",
    ),
    "masks": ("", "masked_rows masked_share masked_share_end masked_unit"),
    "optimizer": (
        "lr warmup_tokens optimizer weight_decay",
        "layer_decay schedule min_lr_ratio decay_share muon_lr muon_momentum weight_decay_schedule weight_decay_ratio "
        "beta1 beta2 eps label_smoothing z_loss average",
    ),
    "stability": ("", "grad_clip nonfinite max_rollbacks"),
    "validation and checkpoints": (
        "validate_every_tokens",
        "checkpoint_every_tokens patience validation_tokens keep_checkpoints keep_best keep_every_tokens keep_words "
        "log_every_steps tensorboard",
    ),
    "device": (
        "device dtype compile",
        "threads matmul_precision deterministic cuda_graphs activation_checkpointing whole_gradients",
    ),
}


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of the training of a model on a dataset.

    Tokens are those of the training stream. Special tokens that an encoder reads around a block do not count.
    """

    # Length and batches
    tokens: int = 10_000_000
    """Tokens to train on. Resume with a larger value to extend a run; the schedules then span the new total."""
    words: int = 0
    """Words of text to train on; 0: tokens decides. Otherwise tokens follows from the average number of words per token
    in the training split. A word is text between white space"""
    minutes: float = 0.0
    """Minutes of training, without validation and checkpoints, after which a run ends; 0: it ends after tokens. The
    schedules and intervals then follow the time, so that the learning rate reaches its end on a machine of any speed:
    a share of the minutes counts as that share of tokens."""
    batch_tokens: int = 16_384
    """Tokens of an optimizer step. Rounded to whole blocks; for pairs, the maximum of both sides with padding."""
    batch_tokens_start: int = 0
    """Tokens of the first step, from which batches of blocks grow linearly to batch_tokens; 0: constant size."""
    batch_warmup_tokens: int = 0
    """Tokens of training over which batches grow."""
    length_start: int = 0
    """Shortest length of sequences. In the first part of the run, blocks are cut into halves, quarters or smaller parts
    of at least this many tokens, and the length doubles until blocks are whole; 0: whole blocks"""
    length_share: float = 0.5
    """Share of the run until blocks are whole. Each length has an equal part of it"""
    micro_batch: int = 16
    """Blocks or pairs in one forward pass. Gradients accumulate over a batch. 0: as many blocks as fit a GPU's memory,
    of at most 65,536 positions, or 16 on other devices and for pairs. With compile, a batch of blocks is cut evenly."""
    sampling: Literal["permutation", "crops"] = "permutation"
    """permutation: every block once an epoch, in an order drawn by (seed, epoch). crops: blocks at random offsets."""
    seed: int = 0
    """Seed. It decides the initial weights, the data order, the masks and dropout"""

    # Masks
    masked_rows: float = 0.0
    """Share of a decoder's blocks in which it attends to both sides and predicts masked tokens (GPT-BERT), such as 0.5
    or 0.9375. The other blocks train next tokens, as validation measures them"""
    masked_share: float = SELECTED
    """Share of the tokens that masks select in training. Validation and evaluation always select 15 % of them, as
    single tokens"""
    masked_share_end: float = 0.0
    """Share at the end of the run, to which it changes linearly; 0: constant"""
    masked_unit: MaskedUnit = "token"
    """token: each token by itself. word: all tokens of a word together. span: 1 to 10 words, 3.8 on average (SpanBERT).
    Words and spans of more than 10 tokens are cut."""

    # Optimizer
    lr: float = 1e-3
    """Peak learning rate"""
    layer_decay: float = 1.0
    """Factor of the learning rate from each block to the block below, such as 0.8 in fine-tuning; 1: none"""
    warmup_tokens: int = 500_000
    """Tokens of linear warm-up. A warm-up that lasts until the end of the run gives a warning."""
    schedule: Literal["cosine", "trapezoid", "inverse_sqrt"] = "cosine"
    """Learning rate after the warm-up. cosine: half a cosine. trapezoid: constant, then linear. inverse_sqrt: 1 /
    sqrt(step)."""
    min_lr_ratio: float = 0.1
    """Final learning rate as a share of the peak; inverse_sqrt ignores it."""
    decay_share: float = 0.5
    """Share of the training in which a trapezoid falls"""
    optimizer: OptimizerKind = "adamw"
    """Optimizer. adamw: all parameters. muon: Muon for the matrices of blocks, AdamW for the others."""
    muon_lr: float = 0.0
    """Peak learning rate of Muon; 0: lr. Its updates are as large as AdamW's."""
    muon_momentum: float = 0.95
    """Momentum of Muon"""
    weight_decay: float = 0.1
    """Decoupled weight decay of matrices. Vectors (biases, norms) never decay."""
    weight_decay_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Weight decay over the run: constant, or linear or half a cosine to weight_decay x weight_decay_ratio. The
    learning rate multiplies it too."""
    weight_decay_ratio: float = 0.0
    """Final weight decay as a multiple of weight_decay, unless its schedule is constant"""
    beta1: float = 0.9
    """AdamW's decay of the first moment"""
    beta2: float = 0.95
    """AdamW's decay of the second moment"""
    eps: float = 1e-8
    """AdamW's term in the denominator"""
    label_smoothing: float = 0.0
    """Probability that training targets spread evenly over the vocabulary"""
    z_loss: float = 0.0
    """Factor of the squared log-sum-exp of the logits in the training loss, such as 1e-4"""
    average: float = 0.0
    """Decay of an exponential moving average of the weights, which validation and evaluation use; 0: none"""

    # Stability
    grad_clip: float = 1.0
    """Maximum L2 norm of the whole gradient; 0: none"""
    nonfinite: Literal["stop", "skip", "rollback"] = "stop"
    """Response to a loss or gradient that is not finite. stop: end the run. skip: leave the step out. rollback: return
    to the last checkpoint and skip the batches read since."""
    max_rollbacks: int = 10
    """Number of rollbacks after which a run stops"""

    # Validation and checkpoints
    validate_every_tokens: int = 1_000_000
    """Tokens between two validations"""
    validation_tokens: int = 32_768
    """Tokens that a validation reads from the start of the validation split, or of the split of each source"""
    patience: int = 0
    """Validations without improvement after which a run stops; 0: none. Then the best checkpoint is kept and used"""
    checkpoint_every_tokens: int = 2_000_000
    """Tokens between two checkpoints"""
    keep_checkpoints: int = 2
    """Number of newest checkpoints to keep"""
    keep_best: bool = False
    """Also keep the checkpoint with the lowest validation loss"""
    keep_every_tokens: int = 0
    """Also keep the first checkpoint past each multiple of this many tokens; 0: none"""
    keep_words: int = 0
    """With words, save and keep the first checkpoint past 1, 2, ..., 9, 10, 20, ..., 90, 100, 200, ... times this many
    words, as BabyLM does with 1M; 0: none"""
    log_every_steps: int = 10
    """Optimizer steps between two lines of metrics.jsonl. An interval of less than half as many steps is merged with
    the interval next to it."""
    tensorboard: bool = False
    """Also write metrics.jsonl's numbers for TensorBoard, into the run's folder tensorboard/"""

    # Device
    device: Device = "auto"
    """Device. auto: a GPU if there is one"""
    threads: int = 0
    """CPU threads; 0: one per core, or OMP_NUM_THREADS if set. Each thread takes its own rows of the batch. Threads
    share every operation instead if batches are small or the model is compiled or has dropout or stochastic depth."""
    dtype: Dtype = "auto"
    """Dtype of activations and products. Weights and optimizer state are float32. float16 scales the loss. auto:
    the fastest that trains well. A small model's validation loss is within 0.05 nats of float32's in bfloat16, and
    within 0.02 in float16. Training warns if the CPU is slow in the dtype."""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """Precision of float32 matrix products. highest: float32. high: TF32 or three bfloat16 products. medium: bfloat16.
    dtype auto already uses bfloat16 where it is faster."""
    deterministic: bool = False
    """Use only deterministic GPU kernels, which are slower: a resumed run then ends with the same weights bit for bit
    on the same kind of GPU. A CPU is always deterministic."""
    compile: bool = False
    """Compile the model and its loss with torch.compile. This takes up to a minute. It pays on a GPU, on a CPU with
    bfloat16 products (a GPT's step took a fifth less), and for models of many small operations (RMS norms, gated
    MLPs)."""
    cuda_graphs: bool = False
    """With compile, launch the model's passes as CUDA graphs, for small models. Not yet tried on a GPU. No effect on
    other devices, on several devices, or where batches differ in shape: pairs, encoders and growing batches."""
    activation_checkpointing: bool = False
    """Keep only the inputs of the blocks, and recompute each block in the backward pass. This saves most of the memory
    of activations and takes about a third more computation."""
    whole_gradients: bool = False
    """With fsdp or hsdp, sum gradients over processes once a step instead of after every micro-batch. This takes 4
    bytes per parameter on every device."""

    def __post_init__(self) -> None:
        check_fields(self, "train.")
        require_positive(self, "tokens", "batch_tokens", "lr", "eps", "max_rollbacks", "log_every_steps")
        require_positive(self, "validate_every_tokens", "validation_tokens", "checkpoint_every_tokens")
        require_positive(self, "keep_checkpoints")
        require_not_negative(self, "micro_batch", "batch_tokens_start", "batch_warmup_tokens", "warmup_tokens")
        require_not_negative(self, "weight_decay", "weight_decay_ratio", "muon_lr", "grad_clip", "z_loss", "threads")
        require_not_negative(self, "keep_every_tokens", "patience", "length_start", "minutes")
        require_not_negative(self, "words", "keep_words")
        require(self, ("layer_decay",), lambda value: 0 < value <= 1, "be above 0 and at most 1")
        require(
            self,
            ("beta1", "beta2", "muon_momentum", "average", "label_smoothing"),
            lambda value: 0 <= value < 1,
            "be in [0, 1)",
        )
        require(self, ("min_lr_ratio", "decay_share"), lambda value: 0 <= value <= 1, "be in [0, 1]")
        require(self, ("masked_rows", "length_share"), lambda value: 0 <= value <= 1, "be in [0, 1]")
        require(self, ("masked_share",), lambda value: 0 < value <= 1, "be above 0 and at most 1")
        require(self, ("masked_share_end",), lambda value: 0 <= value <= 1, "be in [0, 1]")
        require_seed(self.seed, "train.seed")
        check_ranges(self, "train.{}")
        if self.words and self.minutes:
            raise ValueError(f"train.words is {self.words}, and train.minutes is {self.minutes:g}: give one of them")
        if self.keep_words and not self.words:
            raise ValueError(f"train.keep_words is {self.keep_words}, but train.words is 0: give both")
        if self.threads > MOST_THREADS:
            raise ValueError(f"train.threads is {self.threads}, but must be at most {MOST_THREADS}")
        if self.deterministic and not self.micro_batch:
            raise ValueError(
                "train.micro_batch is 0, and what fits may be another number when a run resumes: give a number, or "
                "leave train.deterministic out"
            )
        if self.batch_tokens_start > self.batch_tokens:
            raise ValueError(
                f"train.batch_tokens_start is {self.batch_tokens_start}, but must not be above train.batch_tokens, "
                f"{self.batch_tokens}"
            )
        if (self.batch_tokens_start == 0) != (self.batch_warmup_tokens == 0):
            raise ValueError(
                f"train.batch_tokens_start is {self.batch_tokens_start} and train.batch_warmup_tokens is "
                f"{self.batch_warmup_tokens}: a batch that grows needs both, one that does not needs neither"
            )

    @property
    def keeps_best(self) -> bool:
        """Whether the best checkpoint is kept beside the newest."""
        return self.keep_best or self.patience > 0

    @property
    def loss_is_cross_entropy(self) -> bool:
        """Whether the training loss is a plain cross-entropy, so that its exponential is the perplexity."""
        return not (self.label_smoothing or self.z_loss)

    def position(self, tokens: int, seconds: float) -> float:
        """Return the position in the run after `tokens` tokens and `seconds` seconds of training, from 0 to `tokens`.

        With `minutes`, it is the elapsed share of the time, in tokens.
        """
        return self.tokens * seconds / (60 * self.minutes) if self.minutes else tokens

    def expected_tokens(self, tokens: int, seconds: float) -> float:
        """Return the tokens at the end of a run that has trained on `tokens` tokens in `seconds` seconds.

        With `minutes`, these follow from its speed so far.
        """
        return max(tokens, tokens * 60 * self.minutes / seconds) if self.minutes and seconds else self.tokens

    def word_mark(self, tokens: int) -> int:
        """Return the newest number of words, of those that `keep_words` keeps a checkpoint of, after `tokens` tokens.

        It is 0 before the first one. A token counts as `words` / `tokens` words of the whole run.
        """
        marks = tokens * self.words // (self.tokens * self.keep_words) if self.keep_words else 0
        power: int = 10 ** (len(str(marks)) - 1)
        return self.keep_words * (marks - marks % power)

    def lr_multiplier(self, done: float, batch_tokens: int, total: int | None = None) -> float:
        """Return the share of the peak learning rate at a step of `batch_tokens` tokens, at the position `done`.

        `total` replaces `tokens` as the end of the schedule.
        """
        total = total or self.tokens
        # Without a warm-up, inverse_sqrt falls from the first step. No other schedule then reads the stride.
        stride = batch_tokens if self.warmup_tokens else self.batch_tokens_start or self.batch_tokens
        return multiplier(
            self.schedule,
            done,
            warmup=min(self.warmup_tokens, total),
            total=total,
            stride=stride,
            final=self.min_lr_ratio,
            decay_share=self.decay_share,
        )

    def length(self, done: float, full: int) -> int:
        """Return the tokens of a sequence at the position `done`, of blocks of `full` tokens."""
        return sequence_length(done, shortest=self.length_start, full=full, warmup=self.length_share * self.tokens)

    def share_of_masks(self, done: float) -> float:
        """Return the share of the tokens that is selected at the position `done`."""
        change = (self.masked_share_end or self.masked_share) - self.masked_share
        return self.masked_share + change * min(1.0, done / self.tokens)

    def unfinished_schedules(self) -> list[str]:
        """Return a sentence about each schedule that lasts until the end of the run or longer."""
        found = []
        if ends_at_peak(warmup=self.warmup_tokens, total=self.tokens, stride=self.batch_tokens):
            found.append(
                f"the warm-up of {self.warmup_tokens:,} tokens lasts until the last step of the run of "
                f"{self.tokens:,} tokens, so the learning rate ends at its peak: lower train.warmup_tokens, for "
                f"example to {self.tokens // 20}, or raise train.tokens"
            )
        if self.batch_warmup_tokens >= self.tokens:
            found.append(
                f"the batches grow over {self.batch_warmup_tokens:,} tokens, but the run has only {self.tokens:,}, so "
                f"they do not reach {self.batch_tokens:,} tokens: lower train.batch_warmup_tokens, or raise "
                "train.tokens"
            )
        return found

    def weight_decay_multiplier(self, done: float) -> float:
        """Return the multiple of `weight_decay` at the position `done`."""
        kind, final = self.weight_decay_schedule, self.weight_decay_ratio
        return weight_decay_multiplier(kind, done, total=self.tokens, final=final)
