"""What the C library does with memory that a step has freed: by default it goes back to the system, page by page."""

import ctypes
import sys

# Of mallopt(3), in glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for the next step to take; whether that is in effect.

    Every step asks for the same large tensors as the one before. glibc takes each from the system and gives it back,
    and the system zeroes every page anew: a sixteenth of the time of a small model's step on the CPU. Elsewhere (musl,
    macOS, Windows) nothing is changed. The process then holds its peak until it ends, as one that trains does anyway.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))
