"""The memory of this process."""

import mmap
import sys
from pathlib import Path

STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return the resident memory in bytes, or its peak where the system reports only that."""
    if STATM.exists():
        return int(STATM.read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE
    return peak_bytes()


def peak_bytes() -> int:
    """Return the peak of the resident memory in bytes; without the module `resource` (Windows) what it is now, or 0."""
    try:
        import resource
    except ImportError:
        return resident_bytes() if STATM.exists() else 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
