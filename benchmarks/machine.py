"""Facts about the machine, which every result records."""

import os
import platform
from pathlib import Path

import llvmlite.binding


def processor() -> str:
    """Return the CPU's name, LLVM's name of its generation, and its bfloat16 instructions.

    A virtual machine may lack instructions of its generation.
    """
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = named[0] if named else platform.processor() or platform.machine()
    has = llvmlite.binding.get_host_cpu_features()
    narrow = [feature for feature in ("avx512bf16", "amx-bf16") if has.get(feature)]
    return f"{name} ({', '.join([llvmlite.binding.get_host_cpu_name(), *narrow])})"


def cores() -> int | None:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def device() -> dict:
    """Return the processor, cores, memory, system and Python version."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "processor": processor(),
        "cores": cores(),
        "memory_gb": round(memory / 1e9),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
