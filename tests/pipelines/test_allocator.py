"""With glibc, the process keeps the memory that a training step frees until training ends."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from pipelines.machine import keep_freed_memory

kept = keep_freed_memory() if sys.argv[1] == "kept" else False
for number in range(12):
    if number == 8:  # the first rounds find what fits where
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(10_000_000) for _ in range(4)]
    del blocks
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> tuple[bool, int]:
    """Return whether freed memory was kept, and the page faults of four rounds of 160 MB."""
    said = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
    kept, faults = said.stdout.split()
    return kept == "1", int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_the_next_step_reuses_memory_that_a_step_freed():
    kept, faults = page_faults("kept")
    assert kept and faults < 1_000
    assert page_faults("returned")[1] > 10_000


RESIDENT = """
import resource
import torch
from pipelines.machine import freed_memory_returned, keep_freed_memory

def resident_memory():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

with freed_memory_returned():
    keep_freed_memory()
    blocks = [torch.ones(10_000_000) for _ in range(4)]
    del blocks
    kept = resident_memory()
print(kept - resident_memory())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_memory_goes_back_to_the_system_after_training():
    said = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True, check=True)
    assert int(said.stdout) > 100_000_000  # of 160 MB
