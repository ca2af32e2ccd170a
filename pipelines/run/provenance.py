"""The date, versions and hardware of a run or an evaluation."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import torch

from pipelines import own_version


def provenance(device: torch.device | None = None) -> dict[str, str]:
    """Return the date in UTC, the versions of bytelm, Python and torch and, with a `device`, the hardware."""
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": own_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    return found | ({"hardware": hardware(device)} if device is not None else {})


def hardware(device: torch.device) -> str:
    """Return the name of the GPU, or of the CPU with the threads that torch uses."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.get_num_threads()} of {os.cpu_count()} cores"


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8", errors="replace").splitlines() if facts.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, names), None) or platform.processor() or platform.machine()
