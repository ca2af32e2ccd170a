"""The processes that torchrun starts: how they meet, and which strategy they train with."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # exported, but not to checkers

from pipelines.cli.console import messages
from pipelines.cli.process import end_with_parent
from pipelines.recipes.config import TrainConfig
from pipelines.training.parallel import Kind, OneProcess, Replicas

SHARED_STORE = "TORCHELASTIC_USE_AGENT_STORE"
LAUNCH = "torchrun --standalone --nproc-per-node 2 --no-python bytelm pretrain ..."


@contextmanager
def processes(kind: Kind, config: TrainConfig) -> Iterator[OneProcess]:
    """Yield the strategy of this job's processes; `config` is the recipe's, perhaps with the device "auto".

    Only rank 0 prints. Raises ValueError if `kind` does not fit the way the job was started, and ConnectionError in a
    process that has lost another one. All ranks raise the same FloatingPointError: rank 0 passes it on, others exit.
    """
    started = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 0
    if kind == "none":
        if started > 1:
            raise ValueError(f"torchrun started {started} processes, which would all do the same: give `parallel`")
        yield OneProcess()
        return
    if not started:
        raise ValueError(f"`parallel='{kind}'` is for processes that torchrun starts: `{LAUNCH} --parallel {kind}`")
    backend = "cpu:gloo,cuda:nccl" if _on_gpus(config.device) else "gloo"
    rank, quiet = int(os.environ["RANK"]), messages.quiet
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()  # torchrun itself may be killed
    try:
        dist.init_process_group(backend, **_rendezvous())
        messages.quiet = quiet or rank > 0
        yield Replicas() if kind == "ddp" else _shards(kind, "cuda" if "cuda" in backend else "cpu", config)
    except FloatingPointError:
        if rank == 0:
            raise
        raise SystemExit(0) from None
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error).lower():
            raise ConnectionError(
                f"process {rank} has lost another one of the job: the same command resumes from the newest "
                f"checkpoint ({str(error).strip().splitlines()[0][:200]})"
            ) from error
        raise
    finally:
        messages.quiet = quiet
        if dist.is_initialized():
            dist.destroy_process_group()


def _shards(kind: Kind, device: str, config: TrainConfig) -> OneProcess:
    # FSDP takes half a second to import, which other runs should not wait for.
    from pipelines.training.fully_sharded import FullySharded

    per_node = int(os.environ["LOCAL_WORLD_SIZE"]) if kind == "hsdp" else dist.get_world_size()
    if dist.get_world_size() % per_node:
        raise ValueError(f"`parallel='hsdp'` needs the same number of processes on every node; this one has {per_node}")
    return FullySharded(device, per_node, config.whole_gradients)


def _rendezvous() -> dict[str, Any]:
    """Return arguments of init_process_group: a store for processes after a restart; none for torchrun's own store.

    torchrun keeps one store through its restarts, with the addresses of dead processes. On several nodes restarts are
    not counted alike; there, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 makes torchrun use a new store for each.
    """
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if attempt == 0 or os.environ.get("GROUP_WORLD_SIZE") != "1" or os.environ.get(SHARED_STORE) != "True":
        return {}
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return {"store": PrefixStore(f"attempt {attempt}", store), "rank": rank, "world_size": world_size}


def _on_gpus(device: str) -> bool:
    """Return whether processes compute on GPUs, and if so select this process's; ValueError if there are too few."""
    if device == "cpu" or not torch.cuda.is_available():
        return False
    local_rank, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= gpus:
        started = os.environ.get("LOCAL_WORLD_SIZE", "more")
        raise ValueError(
            f"torchrun started {started} processes here, and there are {gpus} GPUs: --nproc-per-node {gpus}"
        )
    torch.cuda.set_device(local_rank)
    return True
