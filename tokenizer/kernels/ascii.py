"""Pretokens of ASCII text, 64 bytes at a time: vector instructions classify the bytes into bit masks, and bit algebra
on the masks finds the starts of pretokens.

Bit i of a mask stands for byte i of a window that starts at a pretoken. So (mask << 1) & other is the bytes of `other`
that follow a byte of `mask`, and adding the lowest bit of a run of ones carries to the end of the run. The automaton
decides the rest: bytes that are not ASCII, and pretokens that depend on text after the window.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tokenizer.kernels.tools import ALL, ONE, inlined, internal, leading_zeros, trailing_zeros
from tokenizer.splitting.automata import ASCII_GPT2, ASCII_O200K, ASCII_QWEN2

WINDOW = 64


@intrinsic
def _classify(typing_context, array, index):
    """Return masks of array[index:index + 64], uint8: upper case, lower case, digits, spaces, other white space except
    line ends, line ends, apostrophes, slashes, and bytes that are not ASCII. Not bounds-checked."""

    def codegen(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        vector = ir.VectorType(ir.IntType(8), WINDOW)
        pointer = builder.gep(view.data, [arguments[1]])
        window = builder.load(builder.bitcast(pointer, vector.as_pointer()))
        window.align = 1

        def splat(value: int):
            return ir.Constant(vector, [ir.Constant(ir.IntType(8), value)] * WINDOW)

        def within(first: int, last: int):
            shifted = builder.sub(window, splat(first))
            return builder.icmp_unsigned("<=", shifted, splat(last - first))

        def equal(character: str):
            return builder.icmp_unsigned("==", window, splat(ord(character)))

        masks = [
            within(ord("A"), ord("Z")),
            within(ord("a"), ord("z")),
            within(ord("0"), ord("9")),
            equal(" "),
            builder.or_(equal("\t"), within(0x0B, 0x0C)),
            builder.or_(equal("\n"), equal("\r")),
            equal("'"),
            equal("/"),
            builder.icmp_signed("<", window, splat(0)),
        ]
        words = [builder.bitcast(mask, ir.IntType(WINDOW)) for mask in masks]
        return context.make_tuple(builder, signature.return_type, words)

    return types.UniTuple(types.uint64, 9)(array, types.int64), codegen


@inlined
def _after(mask):
    """Return the bytes that follow a byte of the mask."""
    return mask << ONE


@inlined
def _starts(mask):
    """Return the first byte of every run of the mask."""
    return mask & ~_after(mask)


@inlined
def _back_from(last, mask):
    """Return the runs of the mask that end in a byte of `last`. `last` has only ends of runs."""
    for shift in (1, 2, 4, 8, 16, 32):
        last |= mask & last >> np.uint64(shift)
        mask &= mask >> np.uint64(shift)
    return last


@inlined
def _gpt2(letter, digit, space, white, other):
    """Return the starts of pretokens of `gpt2`, except for contractions:
    ` ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`."""
    last_white = white & ~(white >> ONE)
    words = _starts(letter) | _starts(digit) | _starts(other)
    return _starts(white) | last_white | words & ~_after(space)


@inlined
def _cl100k(letter, digit, digits_together, space, blank, newline, other):
    """Return the starts of pretokens of `cl100k` and similar patterns, except for contractions:
    `[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`."""
    first_newline = _after(other) & newline
    taken = ((newline + first_newline) ^ newline) & newline  # line ends that belong to the punctuation before them
    white = (blank | newline) & ~taken
    last_blank = blank & ~((blank | newline) >> ONE)
    final_blanks = _back_from(last_blank, blank)  # blanks after the last line end of their run
    alone = _starts(other) & ~_after(space)  # punctuation that starts a pretoken; letters right after it join
    digits = _starts(digit)
    if digits_together == 1:
        digits = digit
    else:
        four = digit & _after(digit) & digit << np.uint64(2) & digit << np.uint64(3)
        third = digits
        while four and third:
            third = third << np.uint64(3) & four
            digits |= third
    letters = _starts(letter) & ~_after(blank | alone)
    return _starts(white) | last_blank | _starts(final_blanks) | alone | digits | letters


@inlined
def _contraction(data, at, fold):
    """Return the length of the contraction at the apostrophe data[at], 0 for none, -1 if it depends on bytes that are
    not ASCII."""
    one = data[at + 1]
    two = data[at + 2]
    if fold:
        if 65 <= one <= 90:
            one |= 32
        if 65 <= two <= 90:
            two |= 32
    if one == 115 or one == 100 or one == 109 or one == 116:  # 's 'd 'm 't
        return 2
    if (one == 108 and two == 108) or (one == 118 and two == 101) or (one == 114 and two == 101):  # 'll 've 're
        return 3
    return -1 if one >= 0x80 else 0


@internal
def split_ascii(data, position, end, rules, ends, n):
    """Write the ends of pretokens to `ends` from index n on, while ASCII decides them. `position` starts a pretoken.

    Return the number of ends written, and the start of the next pretoken.
    """
    while n + WINDOW <= len(ends) and position + WINDOW <= len(data):
        upper, lower, digit, space, tab, newline, apostrophe, slash, high = _classify(data, position)
        known = (high & (~high + ONE)) - ONE  # the bytes before the first that is not ASCII
        if end - position < WINDOW:
            known &= (ONE << np.uint64(end - position)) - ONE
        length = np.int64(trailing_zeros(~known))
        upper &= known
        letter = (upper | lower) & known
        digit &= known
        blank = (space | tab) & known
        newline &= known
        white = blank | newline
        other = known & ~(letter | digit | white)
        # White space at the end of the known bytes depends on the text after it.
        sure = 64 - np.int64(leading_zeros(known & ~white))
        if rules == ASCII_GPT2:
            starts = _gpt2(letter, digit, space, white, other)
            quotes = apostrophe & starts
        else:
            together = 1 if rules == ASCII_QWEN2 else 3
            starts = _cl100k(letter, digit, together, space, blank, newline, other)
            quotes = apostrophe & starts
            if rules == ASCII_O200K:
                starts |= upper & _after(lower)
                quotes = apostrophe & _after(letter)
                # `[\r\n/]*` after punctuation continues beyond line ends.
                sure = min(sure, np.int64(trailing_zeros(slash & known & _after(newline))) - 1)
        quotes &= known
        done = 0
        while quotes:
            at = np.int64(trailing_zeros(quotes))
            quotes &= quotes - ONE
            size = -1
            if at + 2 < length:
                size = _contraction(data, position + at, rules != ASCII_GPT2)
            if size < 0:
                sure = min(sure, at - 1 if rules == ASCII_O200K else at)
                break
            if size and not (rules == ASCII_O200K and done == at):
                here = ONE << np.uint64(at)
                inside = (here << np.uint64(size)) - here
                starts &= ~inside
                starts |= here << np.uint64(size)
                if rules != ASCII_O200K:
                    starts |= here
                done = at + size
        if sure < 1:
            break
        if sure == length == end - position:
            starts |= ONE << np.uint64(length)  # the end of the text ends the last pretoken
        starts &= (ONE << np.uint64(sure)) * np.uint64(2) - ONE if sure < 64 else ALL
        starts &= ~ONE
        if starts == 0:
            break
        while starts:
            ends[n] = position + np.int64(trailing_zeros(starts))
            starts &= starts - ONE
            n += 1
        position = ends[n - 1]
    return n, position
