"""How a run is trained, in words of the field. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

OptimizerKind = Literal["adamw", "muon"]

# Fields that may change when a run resumes. Except for rounding, they change neither the data order nor the objective.
# `tokens` may only grow: the schedules then span the new total.
CHANGEABLE = (
    *("batch_tokens", "batch_tokens_start", "batch_warmup_tokens", "micro_batch"),
    *("tokens", "device", "threads", "dtype", "matmul_precision", "deterministic", "compile"),
    *("validate_every_tokens", "validation_tokens", "checkpoint_every_tokens", "log_every_steps", "tensorboard"),
    *("keep_checkpoints", "keep_best", "keep_every_tokens", "nonfinite", "max_rollbacks"),
)

MOST_THREADS = 1024


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What the trainer does with a model and a dataset.

    Tokens are those of the training stream that become inputs; the special tokens that an encoder reads
    around each block are not counted.
    """

    tokens: int = 10_000_000
    """Total tokens to train on. Resume with a larger value to extend a run; the schedules then span the new total."""
    batch_tokens: int = 16_384
    """Tokens of one optimizer step, rounded to whole blocks; of pairs, the most of both sides with their padding."""
    batch_tokens_start: int = 0
    """Tokens of the first step, from which batches of blocks grow in a line to batch_tokens; 0: they do not grow."""
    batch_warmup_tokens: int = 0
    """Tokens of training in which they do."""
    micro_batch: int = 16
    """Blocks or pairs that go through the model at once; the batch is accumulated from them. 0: as many blocks as fit a
    GPU's memory; 16 on a CPU, and of pairs, since they differ in length. Compiled blocks are cut evenly into as many
    micro-batches, so that all have one shape."""
    sampling: Literal["permutation", "crops"] = "permutation"
    """Blocks in an order drawn by (seed, epoch), each once an epoch; or crops at random offsets of the stream."""
    lr: float = 1e-3
    """Peak learning rate."""
    schedule: Literal["cosine", "trapezoid", "inverse_sqrt"] = "cosine"
    """How the learning rate goes after its warm-up: half a cosine; constant, then a line; or 1 / sqrt(step)."""
    min_lr_ratio: float = 0.1
    """The learning rate at the end, as a share of the peak; inverse_sqrt has none."""
    warmup_tokens: int = 500_000
    """Tokens of linear warm-up before it."""
    decay_share: float = 0.5
    """The share of the training in which a trapezoid falls."""
    optimizer: OptimizerKind = "adamw"
    """adamw for all parameters, or muon for the matrices of the blocks and adamw for the others."""
    muon_lr: float = 0.0
    """Peak learning rate of Muon; 0: lr. Its updates are as large as AdamW's."""
    muon_momentum: float = 0.95
    weight_decay: float = 0.1
    """Decoupled weight decay of matrices; vectors (biases, norms) are never decayed."""
    weight_decay_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the weight decay goes from weight_decay to its end: not at all, in a line, or as half a cosine. The learning
    rate multiplies it besides."""
    weight_decay_ratio: float = 0.0
    """The weight decay at the end, as a multiple of weight_decay, where it is scheduled."""
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    label_smoothing: float = 0.0
    """Probability that the training targets give to all entries alike; the validation loss has none."""
    z_loss: float = 0.0
    """Factor of the squared log-sum-exp of the logits in the training loss, such as 1e-4; validation has none."""
    grad_clip: float = 1.0
    """Largest L2 norm of the whole gradient; 0 for none."""
    seed: int = 0
    """Of the initial weights, the data order, the masks and dropout."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 0
    """CPU threads; 0: one per core, or OMP_NUM_THREADS if set. Each thread takes its own rows of the batch. Threads
    share every operation instead if batches are small or the model is compiled or has dropout or stochastic depth."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of activations and matrix products; weights and optimizer state are float32. float16 scales the loss. auto: by
    what the device is good at. A small training ends within 0.05 nats of float32's validation loss in bfloat16, and
    within 0.02 in float16."""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """Of matrix products in float32, in torch's words: in full; in TF32 or three bfloat16 products; in bfloat16. Who
    leaves dtype open has bfloat16 where it is faster, so float32 means float32."""
    deterministic: bool = False
    """Whether a GPU uses only kernels that add up in a fixed order, which are slower: then a run that goes on ends with
    the same weights there too, bit for bit, on the same kind of GPU. A CPU always does."""
    compile: bool = False
    """Whether torch.compile prepares the model first: it takes up to a minute, and pays on a GPU; on a CPU where that
    multiplies bfloat16 matrices (a GPT's step took a fifth less), and for models of many small operations, such as RMS
    norms and gated MLPs."""
    validate_every_tokens: int = 1_000_000
    """Tokens between two measurements of the validation loss."""
    validation_tokens: int = 32_768
    """Tokens of the validation split that such a measurement reads, from its start."""
    checkpoint_every_tokens: int = 2_000_000
    """Tokens between two checkpoints."""
    keep_checkpoints: int = 2
    """How many of the latest checkpoints are kept."""
    keep_best: bool = False
    """Whether the checkpoint of the lowest validation loss is kept too."""
    keep_every_tokens: int = 0
    """Also kept for good: the first checkpoint past each multiple of so many tokens; 0: none."""
    average: float = 0.0
    """Decay of an exponential average of the weights, which validation and evaluation then use; 0: none."""
    nonfinite: Literal["stop", "skip", "rollback"] = "stop"
    """What happens at a step whose loss or gradient is not finite: the run stops; goes on without that step; or goes
    back to the last checkpoint and on from there, past all batches that were read since."""
    max_rollbacks: int = 10
    """How many times a run goes back before it stops."""
    log_every_steps: int = 10
    """Optimizer steps between two lines of metrics.jsonl."""
    tensorboard: bool = False
    """Whether what metrics.jsonl says is also written for TensorBoard, to the run's folder tensorboard/."""

    def __post_init__(self) -> None:
        positive = (
            "tokens batch_tokens lr validate_every_tokens validation_tokens "
            "checkpoint_every_tokens keep_checkpoints log_every_steps eps max_rollbacks"
        )
        for name in positive.split():
            if not getattr(self, name) > 0:
                raise ValueError(f"train.{name} is {getattr(self, name)}, but must be above 0")
        not_negative = (
            "micro_batch warmup_tokens batch_tokens_start batch_warmup_tokens weight_decay weight_decay_ratio "
            "grad_clip muon_lr seed keep_every_tokens z_loss threads"
        )
        for name in not_negative.split():
            if not getattr(self, name) >= 0:
                raise ValueError(f"train.{name} is {getattr(self, name)}, but must not be negative")
        if self.threads > MOST_THREADS:
            raise ValueError(f"train.threads is {self.threads}, but must be at most {MOST_THREADS}")
        if self.seed >= 2**63:
            raise ValueError(f"train.seed is {self.seed}, but must be below 2^63")
        for name in ("beta1", "beta2", "muon_momentum", "average", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"train.{name} is {getattr(self, name)}, but must be in [0, 1)")
        for name in ("min_lr_ratio", "decay_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"train.{name} is {getattr(self, name)}, but must be in [0, 1]")
        if self.deterministic and not self.micro_batch:
            raise ValueError(
                "train.micro_batch is 0, and what fits may be another number when a run goes on: give a number, or "
                "leave train.deterministic out"
            )
        self._check_batch_warmup()

    def _check_batch_warmup(self) -> None:
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
