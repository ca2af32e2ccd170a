"""How much memory this process holds."""

import resource
import sys
from pathlib import Path


def resident_memory() -> int:
    """Return the bytes of memory that the process holds now, or its peak so far where only that is known."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
