"""Tools of the kernels: decorators, wide loads and stores, vector operations, bit counts, and hashes."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import caching, cgutils, options
from numba.extending import intrinsic

# Odd constants with well-spread bits (from the golden ratio and the square roots of 2 and 3).
HASH_1 = np.uint64(0x9E3779B97F4A7C15)
HASH_2 = np.uint64(0x6A09E667F3BCC909)
HASH_3 = np.uint64(0xBB67AE8584CAA73B)

# No reference counting of arrays: kernels neither create nor keep arrays, and counting takes longer than a loop step.
_OPTIONS = {"nogil": True} | ({"_nrt": False} if hasattr(options.DefaultOptions, "_nrt") else {})
# Without the wrappers that unpack Python objects, which take long to compile.
_INTERNAL = _OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


# Names that numba does not document are used where they exist. Without them kernels start later, but still compile and
# are cached.
_FunctionCache = getattr(caching, "FunctionCache", None)


class _Cache(_FunctionCache or object):
    """Cache that loads kernels without initializing numba's compiler library.

    numba's own cache does so first, which imports SciPy if installed and is the slowest step before a kernel runs. A
    file that names classes which have moved since is emptied, so the kernel is compiled again.
    """

    def load_overload(self, signature, target):
        try:
            with self._guard_against_spurious_io_errors():
                return self._load_overload(signature, target)
        except (AttributeError, TypeError, ImportError):  # other names or arguments in numba, or a class that has moved
            try:
                return super().load_overload(signature, target)
            except (AttributeError, ImportError):
                self.flush()
                return None


def kernel(function: Callable):
    """Compile a function that Python calls."""
    dispatcher = _by_types_alone(numba.njit(**_OPTIONS)(function))
    with suppress(RuntimeError):  # no writable folder: every process compiles the kernel
        # Kernels that count references need the library that only numba's own cache initializes.
        if _FunctionCache and hasattr(dispatcher, "_cache") and "_nrt" in _OPTIONS:
            dispatcher._cache = _Cache(function)
        else:
            dispatcher.enable_caching()
        with suppress(AttributeError):
            file = dispatcher._cache._cache_file
            file._source_stamp = file._source_stamp, _digest_of_sources()
    # This hook would import installed numba extensions; kernels take only arrays and numbers.
    dispatcher._compilation_chain_init_hook = lambda: None
    return dispatcher


@cache
def _digest_of_sources() -> bytes:
    """Return a digest of all modules that kernels are made of.

    numba compiles a cached kernel again only if its own file has changed, though the functions and constants that it
    imports are compiled into it.
    """
    package = Path(__file__).parents[1]
    modules = sorted(module for folder in ("kernels", "splitting") for module in (package / folder).glob("*.py"))
    return sha256(b"".join(module.read_bytes() for module in modules)).digest()


def internal(function: Callable):
    """Compile a function that only kernels call."""
    return _by_types_alone(numba.njit(**_INTERNAL)(function))


def inlined(function: Callable):
    """As `internal`, for small functions in inner loops: LLVM inlines them."""
    return _by_types_alone(numba.njit(**_INTERNAL, forceinline=True)(function))


def _by_types_alone(dispatcher):
    """Compile a function once per argument types, not once per constant argument."""
    template_of = getattr(dispatcher, "get_call_template", None)
    if template_of is None:
        return dispatcher

    def get_call_template(args, kws):
        return template_of(tuple(map(types.unliteral, args)), {name: types.unliteral(kws[name]) for name in kws})

    dispatcher.get_call_template = get_call_template
    return dispatcher


SHORT = 16  # pretokens below this many bytes are packed into two words

HUGE_PAGE = 1 << 21  # bytes

ONE = np.uint64(1)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@intrinsic
def load_8(typing_context, array, index):
    """Return the eight bytes of a uint8 array from `index` on as a little-endian uint64. Not bounds-checked."""
    signature = types.uint64(array, types.int64)

    def codegen(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(view.data, [arguments[1]])
        value = builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()))
        value.align = 1
        return value

    return signature, codegen


@intrinsic
def store_8(typing_context, array, index, value):
    """Write a uint64 over the eight bytes from element `index` of an array on. Not bounds-checked."""
    signature = types.void(array, types.int64, types.uint64)

    def codegen(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(view.data, [arguments[1]])
        builder.store(arguments[2], builder.bitcast(pointer, ir.IntType(64).as_pointer()), align=1)
        return context.get_dummy_value()

    return signature, codegen


def _load_vector(context, builder, array_type, array, index, lanes):
    """Return `lanes` elements of an array of unsigned integers from `index` on as an LLVM vector."""
    view = context.make_array(array_type)(context, builder, array)
    pointer = builder.gep(view.data, [index])
    vector = ir.VectorType(ir.IntType(array_type.dtype.bitwidth), lanes)
    value = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    value.align = array_type.dtype.bitwidth // 8
    return value


def _splat(builder, value, lanes):
    vector = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    for lane in range(lanes):
        vector = builder.insert_element(vector, value, ir.IntType(32)(lane))
    return vector


def _reduce(builder, operation, vector):
    """Reduce a vector to one element by `umin` or `or`."""
    element = vector.type.element
    name = f"llvm.vector.reduce.{operation}.v{vector.type.count}i{element.width}"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(element, [vector.type]), name)
    return builder.call(function, [vector])


@intrinsic
def least_of_8(typing_context, array, index):
    """Return the minimum of eight elements of a uint32 array from `index` on. Not bounds-checked."""

    def codegen(context, builder, signature, arguments):
        return _reduce(builder, "umin", _load_vector(context, builder, signature.args[0], *arguments, 8))

    return types.uint32(array, index), codegen


@intrinsic
def equal_of_8(typing_context, array, index, value):
    """Return a uint64 in which bit i < 8 is whether array[index + i], uint32, equals `value`. Not bounds-checked."""

    def codegen(context, builder, signature, arguments):
        vector = _load_vector(context, builder, signature.args[0], *arguments[:2], 8)
        mask = builder.icmp_unsigned("==", vector, _splat(builder, arguments[2], 8))
        return builder.zext(builder.bitcast(mask, ir.IntType(8)), ir.IntType(64))

    return types.uint64(array, index, types.uint32), codegen


@intrinsic
def find_in_bucket(typing_context, array, index, key):
    """Return the value of `key` in a bucket, ALL if it has none: array[index:index + 8], four keys, then their values.

    Branchless, because the matching key is unpredictable. Not bounds-checked.
    """

    def codegen(context, builder, signature, arguments):
        array, index, key = arguments
        keys = _load_vector(context, builder, signature.args[0], array, index, 4)
        values = _load_vector(context, builder, signature.args[0], array, builder.add(index, index.type(4)), 4)
        nothing = ir.Constant(keys.type, [ir.Constant(ir.IntType(64), 0)] * 4)
        found = builder.icmp_unsigned("==", keys, _splat(builder, key, 4))
        # At most one complement is not zero, so `or`, which is fast on every processor, selects it.
        return builder.not_(_reduce(builder, "or", builder.select(found, builder.not_(values), nothing)))

    return types.uint64(array, index, types.uint64), codegen


@intrinsic
def prefetch(typing_context, array, index):
    """Prefetch the cache line of array[index]."""
    signature = types.void(array, index)

    def codegen(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.bitcast(builder.gep(view.data, [arguments[1]]), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, word(0), word(3), word(1)])  # read access, high locality, data cache
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def trailing_zeros(typing_context, mask):
    """Return the index of the lowest set bit of a uint64, 64 for 0."""

    def codegen(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), codegen


@intrinsic
def leading_zeros(typing_context, mask):
    """Return the number of bits above the highest set bit of a uint64, 64 for 0."""

    def codegen(context, builder, signature, arguments):
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), codegen


# Masks of the bytes that a pretoken of up to 15 bytes takes in two words.
_LOW_MASKS = np.array([(1 << 8 * min(length, 8)) - 1 for length in range(SHORT)], dtype=np.uint64)
_HIGH_MASKS = np.array([(1 << 8 * max(length - 8, 0)) - 1 for length in range(SHORT)], dtype=np.uint64)


@inlined
def mix(low, high):
    """Return a 64-bit hash of two words. Only its upper bits are well mixed."""
    h = (low ^ HASH_1) * HASH_2 ^ (high ^ HASH_2) * HASH_3
    h ^= h >> np.uint64(29)
    return h * HASH_1


@inlined
def pack(data, start, length):
    """Return up to 15 bytes, zero padded, in two words, with their number in the top byte of the second.

    Loads 16 bytes.
    """
    low = load_8(data, start) & _LOW_MASKS[np.uint64(length)]
    high = load_8(data, start + 8) & _HIGH_MASKS[np.uint64(length)]
    return low, high | np.uint64(length) << np.uint64(56)


@internal
def pack_slowly(data, start, length):
    """As `pack`, but loads only the bytes of the pretoken."""
    low = np.uint64(0)
    high = np.uint64(0)
    for k in range(length):
        if k < 8:
            low |= np.uint64(data[start + k]) << np.uint64(8 * k)
        else:
            high |= np.uint64(data[start + k]) << np.uint64(8 * (k - 8))
    return low, high | np.uint64(length) << np.uint64(56)


@inlined
def hash_bytes(data, start, end):
    """Return a 64-bit hash of data[start:end]. Only its upper bits are well mixed."""
    h = np.uint64(end - start) * HASH_3
    k = start
    while k + 8 <= end:
        h = (h ^ load_8(data, k)) * HASH_2
        h ^= h >> np.uint64(31)
        k += 8
    while k < end:
        h = (h ^ np.uint64(data[k])) * HASH_2
        k += 1
    return (h ^ h >> np.uint64(31)) * HASH_1


def align(words: int, fill: int) -> np.ndarray:
    """Return uint64 (words,) aligned to a cache line, so that no row of up to 64 bytes spans two lines.

    Large arrays use huge pages if available: with random access, TLB misses take as long as the reads.
    """
    boundary = 64
    if 8 * words >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        boundary = HUGE_PAGE
        pages = mmap.mmap(-1, 8 * words + boundary, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # no huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
        memory = np.frombuffer(pages, dtype=np.uint64)
    else:
        memory = np.zeros(words + boundary // 8, dtype=np.uint64)
    first = -memory.ctypes.data % boundary // 8
    array = memory[first : first + words]
    if fill:
        array.fill(fill)
    return array
