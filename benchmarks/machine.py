"""What a result says of the machine that it was measured on."""

import os
import platform
from pathlib import Path

import llvmlite.binding


def processor() -> str:
    """What the processor calls itself as far as the system tells, the generation as which compilers know it, and its
    instructions for bfloat16, which a generation made out in a virtual machine need not have."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = named[0] if named else platform.processor() or platform.machine()
    has = llvmlite.binding.get_host_cpu_features()
    narrow = [feature for feature in ("avx512bf16", "amx-bf16") if has.get(feature)]
    return f"{name} ({', '.join([llvmlite.binding.get_host_cpu_name(), *narrow])})"


def cores() -> int | None:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def device() -> dict:
    """Processor, cores, memory, system and Python."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "processor": processor(),
        "cores": cores(),
        "memory_gb": round(memory / 1e9),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
