"""Compute the matrix products of the output layer: logits, and gradients of hidden states and output matrix."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2


class Products:
    """Products in the dtype of the rows. The buffers of logits have P >= V columns, of which the first V count."""

    row_multiple: ClassVar[int] = 1
    """The number of rows of a chunk is a multiple of this."""
    gradient_scale: ClassVar[float] = 1.0
    """Factor by which the gradient of the logits is scaled; the products remove it."""

    def __init__(self, rows: Tensor, matrix: Tensor, columns: int) -> None:
        """Take rows (N, width), matrix (V, width) in the dtype of the rows, and `columns`, the P of the buffers."""
        self._rows, self._matrix, self._entries = rows, matrix, len(matrix)

    def logits(self, chunk: slice, out: Tensor, bias: Tensor | None) -> None:
        """Write the logits of a chunk of n rows, plus bias (V,), to `out` (n, P)."""
        logits = out[:, : self._entries]
        if bias is None:
            torch.mm(self._rows[chunk], self._matrix.T, out=logits)
        else:
            torch.addmm(bias, self._rows[chunk], self._matrix.T, out=logits)

    def backward(self, gradient: Tensor, weighted: Tensor, total: Tensor, first: bool) -> Tensor:
        """Return the gradient of the rows (n, width), and add the gradient of the matrix to `total` (V, width).

        `gradient` (n, P) is the gradient of the logits. `weighted` (n, width) are the rows times their weights. `total`
        is float32 or float64; with `first` it is still 0.
        """
        gradient = gradient[:, : self._entries]
        self._add_matrix_gradient(gradient, weighted, total, first)
        return gradient @ self._matrix

    @staticmethod
    def _add_matrix_gradient(gradient: Tensor, weighted: Tensor, total: Tensor, first: bool) -> None:
        if weighted.dtype == total.dtype:
            total.addmm_(gradient.T, weighted)
        elif first:
            total.copy_(gradient.T @ weighted)  # a third of the time of adding to zeros
        else:
            total += gradient.T @ weighted


class Float8Products(Products):
    """8-bit products for the logits and the gradient of the rows: e4m3 for rows and matrix, e5m2 for gradients.

    Micikevicius et al. 2022. Each tensor has one scale. For rows and matrix, it maps the largest magnitude to the
    largest number of e4m3; the scale stays on the GPU, so the host does not wait. The gradient of a logit is at most 1,
    so its scale is constant, which saves a pass. The gradient of the matrix is a product in the dtype of the rows:
    8-bit products need a transposed copy of the logits' gradient, which takes longer than they save.
    """

    row_multiple = 16
    gradient_scale = 2.0**14  # e5m2 reaches 2^15.8; its smallest number then stands for 2^-30

    def __init__(self, rows: Tensor, matrix: Tensor, columns: int) -> None:
        super().__init__(rows, matrix, columns)
        self._rows8, self._rows_scale = quantize(rows)
        self._matrix8, self._matrix_scale = quantize(F.pad(matrix, (0, 0, 0, columns - len(matrix))))
        self._by_columns = _by_columns(self._matrix8)
        self._gradient_scale = rows.new_full((), 1.0 / self.gradient_scale, dtype=torch.float32)

    def logits(self, chunk: slice, out: Tensor, bias: Tensor | None) -> None:
        torch._scaled_mm(
            self._rows8[chunk],
            self._matrix8.T,
            scale_a=self._rows_scale,
            scale_b=self._matrix_scale,
            out_dtype=out.dtype,
            use_fast_accum=True,
            out=out,
        )
        if bias is not None:
            out[:, : self._entries] += bias

    def backward(self, gradient: Tensor, weighted: Tensor, total: Tensor, first: bool) -> Tensor:
        scaled = weighted / self.gradient_scale
        self._add_matrix_gradient(gradient[:, : self._entries], scaled, total, first)
        return torch._scaled_mm(
            gradient.to(BACKWARD),
            self._by_columns,
            scale_a=self._gradient_scale,
            scale_b=self._matrix_scale,
            out_dtype=gradient.dtype,
        )


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x / scale in e4m3, and the scale, a float32 scalar on the device of x."""
    scale = (x.abs().amax().float() / torch.finfo(FORWARD).max).clamp(min=torch.finfo(torch.float32).tiny)
    return (x / scale.unsqueeze(0)).to(FORWARD), scale


def _by_columns(matrix: Tensor) -> Tensor:
    """Return the matrix with contiguous columns, as the second factor of an 8-bit product must be."""
    return matrix.T.contiguous().T


def require_float8(device: torch.device, dtype: torch.dtype, width: int) -> None:
    """Raise ValueError unless `Float8Products` can train an output layer of this width on the device."""
    if dtype != torch.bfloat16:
        name = str(dtype).removeprefix("torch.")
        raise ValueError(f"train.fp8_head is true, but the dtype is {name}: give train.dtype bfloat16, or leave it out")
    if width % Float8Products.row_multiple:
        raise ValueError(f"train.fp8_head is true, but model.width {width} is no multiple of 16: leave it out")
    rows = torch.ones(16, 16, dtype=dtype, device=device)
    try:
        products = Float8Products(rows, rows, columns=16)
        products.logits(slice(0, 16), rows.clone(), None)
        products.backward(rows, rows, rows.float(), first=True)
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        why = str(error).strip().splitlines()[0]
        raise ValueError(
            f"train.fp8_head is true, but {device.type} has no 8-bit products: leave it out ({why})"
        ) from error
