"""Importing the tokenizer is light, and its kernels load anywhere."""

import subprocess
import sys


def test_importing_loads_no_kernels():
    script = "import sys, tokenizer; print([m for m in ('numba', 'pyarrow', 'regex', 'torch') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_kernels_load_without_a_writable_folder():
    """In a read-only container, for example, every process compiles the kernels."""
    code = (
        "import numba.core.caching as caching\n"
        "def refuse(self): raise OSError(30, 'Read-only file system')\n"
        "caching._CacheLocator.ensure_cache_path = refuse\n"
        "import tokenizer.kernels.merge_loop, tokenizer.kernels.encode\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
