"""The memory of this process."""

import resource
import sys
from pathlib import Path


def resident_memory() -> int:
    """Return the resident memory of the process in bytes, or its peak so far where the system reports only that."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
