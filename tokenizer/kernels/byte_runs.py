"""Merging in long pretokens that are mostly runs of one byte, such as 64 MB of spaces.

A run of one symbol is one row with a repeat count, so merging (x, x) halves the run. A run of n symbols has n - 1 inner
pairs, and one outer pair with the next run of its pretoken. Neighbouring runs of a pretoken have different symbols.
Pair counts are in the records of `kernels.pairs`, shared with all pretokens.
"""

from __future__ import annotations

import numpy as np

from tokenizer.kernels.pairs import COUNT, KEY, NONE, RECORD, RUNS, first_record, leave, new_record
from tokenizer.kernels.tools import inlined, internal, kernel

SYMBOL, REPEAT, INNER, OUTER, WORD, RUN = range(6)  # columns of a run, and their number
# INNER: record of (symbol, symbol). OUTER: record of (symbol, next run's symbol). WORD: index of the pretoken.
SEEK = -2  # in place of a record: a pair with the new symbol, to be looked up or made


@kernel
def count_run_pairs(runs, counts, records, free, on_heap, state, record_of_pair):
    """Count the pairs of bytes within runs and between neighbouring runs."""
    for i in range(state[RUNS]):
        weight = counts[runs[i, WORD]]
        symbol = runs[i, SYMBOL]
        if runs[i, REPEAT] > 1:
            record = first_record(records, free, on_heap, state, record_of_pair, symbol, symbol)
            records[RECORD * record + COUNT] += weight * (runs[i, REPEAT] - 1)
            runs[i, INNER] = record
        if i + 1 < state[RUNS] and runs[i + 1, WORD] == runs[i, WORD]:
            record = first_record(records, free, on_heap, state, record_of_pair, symbol, runs[i + 1, SYMBOL])
            records[RECORD * record + COUNT] += weight
            runs[i, OUTER] = record


@internal
def give_up_in_runs(runs, state, record):
    """Remove a pair that would make too long a token."""
    for i in range(state[RUNS]):
        if runs[i, INNER] == record:
            runs[i, INNER] = NONE
        if runs[i, OUTER] == record:
            runs[i, OUTER] = NONE


@internal
def replace_in_runs(training, record, new, made):
    """Replace the pair by the new symbol in all runs. Return `made`, the number of pairs made by this merge so far."""
    runs = training.runs
    old = training.old_runs
    records = training.records
    state = training.state
    total = state[RUNS]
    first = 0
    while first < total and runs[first, INNER] != record and runs[first, OUTER] != record:
        first += 1
    if first == total:
        return made
    for i in range(first, total):
        for k in range(RUN):
            old[i, k] = runs[i, k]
    state[RUNS] = first
    doubled = records[RECORD * record + KEY] >> 32 == records[RECORD * record + KEY] & 0xFFFFFFFF
    link = runs[first - 1, OUTER] if first else NONE
    link_holds = True  # whether the run before `link` keeps its last symbol
    for i in range(first, total):
        inner = old[i, INNER]
        symbol = old[i, SYMBOL]
        repeat = old[i, REPEAT]
        # The run becomes `before` symbols, then `merged` new ones, then `after` symbols.
        before = repeat
        merged = 0
        after = 0
        keeps_first = True
        keeps_last = True
        if doubled:
            if inner == record:
                before = 0
                merged = repeat >> 1
                after = repeat & 1
                keeps_first = False
                keeps_last = after == 1
        else:
            if link == record:  # the run gives its first symbol to the new symbol before it
                before -= 1
                keeps_first = False
            if old[i, OUTER] == record:
                before -= 1
                merged = 1
                keeps_last = False
            if before < repeat:
                leave(records, training.free, training.on_heap, state, inner, training.counts[old[i, WORD]])
                keeps_first = keeps_first and before > 0
                keeps_last = keeps_last and before > 0
        if not (link_holds and keeps_first):
            if link != record:
                leave(records, training.free, training.on_heap, state, link, training.counts[old[i, WORD]])
            link = SEEK
        if before:
            made = _append(training, symbol, before, inner, link, old[i, WORD], new, made)
            link = SEEK
        if merged:
            made = _append(training, new, merged, SEEK, link, old[i, WORD], new, made)
        if after:
            made = _append(training, symbol, after, NONE, SEEK, old[i, WORD], new, made)
        link = old[i, OUTER]
        link_holds = keeps_last
    return made


@internal
def _append(training, symbol, repeat, inner, link, word, new, made):
    """Append a run. `link` is its pair with the run before it, if both are of one pretoken. Return `made`."""
    runs = training.runs
    records = training.records
    state = training.state
    weight = training.counts[word]
    at = state[RUNS]
    if at and runs[at - 1, WORD] == word:
        before = runs[at - 1, SYMBOL]
        if link == SEEK:
            link, made = _pair_with_new(training, before, symbol, new, made)
            records[RECORD * link + COUNT] += weight
        if before == symbol:  # two new symbols, each from two runs
            runs[at - 1, REPEAT] += 1
            runs[at - 1, INNER] = link
            return made
        runs[at - 1, OUTER] = link
    if repeat == 1:
        inner = NONE
    elif inner == SEEK:
        inner, made = _pair_with_new(training, new, new, new, made)
        records[RECORD * inner + COUNT] += weight * (repeat - 1)
    runs[at, SYMBOL] = symbol
    runs[at, REPEAT] = repeat
    runs[at, INNER] = inner
    runs[at, OUTER] = NONE
    runs[at, WORD] = word
    state[RUNS] = at + 1
    return made


@inlined
def _pair_with_new(training, left, right, new, made):
    """Return the record of a pair with the new symbol, and `made`, incremented if the record is new."""
    if right == new:
        by_neighbour = training.with_left
        neighbour = left
    else:
        by_neighbour = training.with_right
        neighbour = right
    pair = np.int64(by_neighbour[neighbour])
    if pair == NONE:
        pair = new_record(training.records, training.free, training.on_heap, training.state, left, right, 1)
        by_neighbour[neighbour] = pair
        training.made[made] = pair
        made += 1
    return pair, made
