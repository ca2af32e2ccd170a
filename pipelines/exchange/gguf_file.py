"""GGUF files: keys and tensors, written by the package `gguf` and read here with checks of every length.

The package's own reader trusts the lengths in a file, and never returns for some damaged files.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import torch
from torch import Tensor

from pipelines.files import refuse_special

GgufDtype = Literal["f32", "f16", "bf16", "q8_0"]
QUANTIZATIONS = {name: gguf.GGMLQuantizationType[name.upper()] for name in ("f32", "f16", "bf16", "q8_0")}
FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}
"""general.file_type by dtype"""
FULL_PRECISION = ("position_embd", "token_types")
"""Matrices that stay float32, as vectors do: llama.cpp adds their rows to float32"""
BLOCK = 32
"""Numbers of a row that share a scale in Q8_0"""
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Formats of `struct` by type of value; 8 is a string and 9 an array"""
STRING, ARRAY = 8, 9
MOST_AXES = 4
MOST_ITEMS = 1 << 24


def write_gguf(
    path: Path, architecture: str, keys: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: GgufDtype
) -> None:
    """Write a file: matrices in `dtype`, vectors in float32. For q8_0, rows that 32 does not divide are float16."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_file_type(FILE_TYPES[dtype])
    for key, value in keys.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    kinds = {name: QUANTIZATIONS[_dtype_of(name, tensor, dtype)] for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        per_block, size = gguf.GGML_QUANT_SIZES[kinds[name]]
        # With `raw_dtype`, the package ignores this dtype unless it is uint8.
        writer.add_tensor_info(
            name, tuple(tensor.shape), np.dtype(np.float32), tensor.numel() // per_block * size, kinds[name]
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, tensor in tensors.items():
        writer.write_tensor_data(gguf.quantize(tensor.float().numpy(), kinds[name]))
    writer.close()


def _dtype_of(name: str, tensor: Tensor, dtype: GgufDtype) -> GgufDtype:
    if tensor.ndim < 2 or name.startswith(FULL_PRECISION):
        return "f32"
    return "f16" if dtype == "q8_0" and tensor.shape[-1] % BLOCK else dtype


@dataclass(frozen=True)
class GgufFile:
    """The content of a file."""

    keys: dict[str, Any]
    tensors: dict[str, Tensor]
    """Float32, in the shapes of torch"""


def read_gguf(path: Path) -> GgufFile:
    """Return the keys and the tensors of a file, dequantized to float32.

    Raises ValueError for a file that is damaged, one of several parts, or of another dtype than `GgufDtype`.
    """
    if not path.is_file():
        refuse_special(path)  # raises if it is missing or a pipe
        raise ValueError(f"{path} is a folder: name a GGUF file")
    data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    return _Reader(path, data).read()


class _Reader:
    """The bytes of a file and a place in them."""

    def __init__(self, path: Path, data: np.ndarray) -> None:
        self.path, self.data, self.at = path, data, 0

    def read(self) -> GgufFile:
        if bytes(self.data[:4]) != b"GGUF":
            raise ValueError(f"{self.path} is not a GGUF file: name one that ends in .gguf")
        self.at = 4
        version, tensors, keys = self.number("I"), self.number("Q"), self.number("Q")
        if version not in (2, 3):
            raise ValueError(f"{self.path} is GGUF of version {version}: versions 2 and 3 are supported")
        found: dict[str, Any] = {}
        for _ in self.counted(keys):
            name = self.text()
            if name in found:
                raise self.damage(f"it has the key {name!r} twice")
            found[name] = self.value(self.number("I"))
        parts = found.get("split.count", 1)
        if type(parts) is not int:
            raise self.damage(f"split.count is {parts!r:.60}")
        if parts > 1:
            raise ValueError(f"{self.path} is one of {parts} parts: merge them with llama-gguf-split")
        places = [self.tensor_place() for _ in self.counted(tensors)]
        alignment = found.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1:
            raise self.damage(f"general.alignment is {alignment!r}")
        start = math.ceil(self.at / alignment) * alignment
        read = {name: self.tensor(name, shape, kind, start + offset) for name, shape, kind, offset in places}
        if len(read) < len(places):
            raise self.damage("two tensors have the same name")
        return GgufFile(found, read)

    def damage(self, reason: str) -> ValueError:
        return ValueError(f"{self.path} is damaged ({reason}): fetch it again")

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise self.damage("it ends too early")
        self.at += size
        return bytes(self.data[self.at - size : self.at])

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def counted(self, count: int) -> Iterator[int]:
        """Return a range of `count`, which must be plausible: every item takes at least a byte."""
        if count > min(MOST_ITEMS, len(self.data) - self.at):
            raise self.damage(f"it has {count:,} entries")
        return iter(range(count))

    def text(self) -> str:
        try:
            return self.take(self.number("Q")).decode()
        except UnicodeDecodeError:
            raise self.damage("a text is not UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner in NUMBERS:
                code = f"<{min(count, len(self.data) + 1)}{NUMBERS[inner]}"
                return list(struct.unpack(code, self.take(struct.calcsize(code))))
            if inner == ARRAY:
                raise self.damage("an array holds arrays")
            return [self.value(inner) for _ in self.counted(count)]
        if kind not in NUMBERS:
            raise self.damage(f"a value has the type {kind}")
        found = self.number(NUMBERS[kind])
        # The shortest decimal number that is this float32, as it was before it was written.
        return float(str(np.float32(found))) if NUMBERS[kind] == "f" else found

    def tensor_place(self) -> tuple[str, tuple[int, ...], int, int]:
        """Return the name, shape, type and offset of a tensor. The shape is torch's: innermost last."""
        name, axes = self.text(), self.number("I")
        if not 1 <= axes <= MOST_AXES:
            raise self.damage(f"{name} has {axes} axes")
        shape = tuple(self.number("Q") for _ in range(axes))[::-1]
        return name, shape, self.number("I"), self.number("Q")

    def tensor(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> Tensor:
        if kind not in QUANTIZATIONS.values():
            known = {each.value: each.name for each in gguf.GGMLQuantizationType}
            raise ValueError(
                f"{self.path} has {name} in {known.get(kind, f'the type {kind}')}: take a file of the same model in "
                f"{', '.join(name.upper() for name in QUANTIZATIONS)}"
            )
        quantization = gguf.GGMLQuantizationType(kind)
        per_block, size = gguf.GGML_QUANT_SIZES[quantization]
        if shape[-1] % per_block:
            raise self.damage(f"{name} has rows of {shape[-1]} numbers")
        end = start + math.prod(shape) // per_block * size
        if end > len(self.data):
            raise self.damage(f"it ends before {name} does")
        rows = np.ascontiguousarray(self.data[start:end]).reshape(*shape[:-1], -1)
        return torch.from_numpy(gguf.dequantize(rows, quantization).reshape(shape).copy())
