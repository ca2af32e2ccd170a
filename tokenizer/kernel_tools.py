"""What several kernels share: loads of several bytes at once, and the hash of a packed pretoken."""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

# Odd constants with well-spread bits (from the golden ratio and the square roots of 2 and 3).
HASH_1 = np.uint64(0x9E3779B97F4A7C15)
HASH_2 = np.uint64(0x6A09E667F3BCC909)
HASH_3 = np.uint64(0xBB67AE8584CAA73B)


@intrinsic
def load_8(typing_context, array, index):
    """The eight bytes of a uint8 array from `index` on, as a little-endian uint64. Not bounds-checked."""
    signature = types.uint64(array, types.int64)

    def codegen(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(view.data, [arguments[1]])
        value = builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()))
        value.align = 1
        return value

    return signature, codegen


@numba.njit(inline="always")
def mix(low, high):
    """Hash two 64-bit words to one whose upper bits are good."""
    h = (low ^ HASH_1) * HASH_2 ^ (high ^ HASH_2) * HASH_3
    h ^= h >> np.uint64(29)
    return h * HASH_1
