"""The loss moves few bytes per logit, in aligned rows, and compiles once."""

import re

import pytest
import torch
from torch._inductor.graph import GraphLowering
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lm.logit_loss import Variant, fused_score
from lm.losses import ALIGNMENT, linear_cross_entropy

PRODUCTS = 2 + 2 + 2  # bytes of a 16-bit logit that the products write, read and read again
ALL = Variant(soft_cap=15.0, label_smoothing=0.1, z_loss=1e-4)


class Traffic(TorchDispatchMode):
    """Counts the bytes that operations read and write in tensors of at least `least` entries."""

    # Views and allocations; and operations on one entry a row, or on the padding.
    FREE = ("new_empty", "empty_like", "new_full", "slice", "t", "permute", "alias", "split", "detach")
    FEW = ("gather", "scatter_add_", "fill_")

    def __init__(self, least):
        super().__init__()
        self.least, self.bytes, self.strides = least, 0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        name = function.overloadpacket.__name__
        read = self.large(args[1:] if name == "copy_" else args)
        written = self.large(result)
        if name in {"mm", "addmm"}:
            self.strides |= {each.stride() for each in read + written}
        if name not in self.FREE + self.FEW:
            self.bytes += sum(each.numel() * each.dtype.itemsize for each in read + written)
        if name == "softmax" and read and read[0].dtype != written[0].dtype:
            self.bytes += 2 * written[0].numel() * written[0].dtype.itemsize  # the widened logits, in some versions
        return result

    def large(self, tree):
        return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.numel() >= self.least]


def meta_problem(n, v, width, bias=False):
    """Tensors without memory, which take the operations of a GPU."""
    rows = torch.empty(n, width, dtype=torch.bfloat16, device="meta", requires_grad=True)
    weight, offset = (torch.empty(*shape, device="meta", requires_grad=True) for shape in ((v, width), (v,)))
    return rows, weight, torch.empty(n, dtype=torch.int64, device="meta"), offset if bias else None


def test_an_uncompiled_step_on_a_gpu_moves_28_bytes_per_logit():
    with Traffic(2**20) as traffic:
        linear_cross_entropy(*meta_problem(1024, 4096, 8)).backward()
    assert traffic.bytes == 28 * 1024 * 4096


def test_uncompiled_validation_on_a_gpu_moves_18_bytes_per_logit():
    with Traffic(2**20) as traffic, torch.no_grad():
        linear_cross_entropy(*meta_problem(1024, 4096, 8))
    assert traffic.bytes == 18 * 1024 * 4096


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("fused", [None, fused_score])
def test_rows_of_logits_are_aligned_in_all_products(fused, bias):
    rows, weight, targets, offset = meta_problem(256, 50_257, 8, bias)
    with Traffic(2**20) as traffic:
        linear_cross_entropy(rows, weight, targets, offset, fused=fused).backward()
    assert len(traffic.strides) == 2  # the logits, and their gradient transposed
    assert all(max(stride) % ALIGNMENT == 0 and min(stride) == 1 for stride in traffic.strides)


def passes(code, columns):
    """Return the bytes of 16-bit logits that each loop over `columns` columns of generated C++ reads and writes."""
    loops = re.split(rf"for\(int64_t (\w+)=[^;]*; \w+<static_cast<int64_t>\({columns}L\)", code)
    found = []
    for variable, body in zip(loops[1::2], loops[2::2], strict=True):
        place = rf"static_cast<int64_t>\({variable} "
        stored = re.findall(rf"store\((\w+) \+ {place}|(\w+)\[{place}[^;]*\] = ", body)
        loaded = re.findall(rf"loadu\((\w+) \+ {place}|= (\w+)\[{place}", body)
        found.append(2 * len({max(each) for each in loaded}) + 2 * len({max(each) for each in stored}))
    return found


class GeneratedError(Exception):
    """Stops a compilation once the code is generated."""


def generated(function, arguments, monkeypatch):
    """Return the code that torch.compile generates, without the minute of a C++ compiler."""
    codes = []

    def keep(code):
        codes.append(code)
        raise GeneratedError

    monkeypatch.setattr(GraphLowering, "save_output_code", keep)
    torch._dynamo.reset()
    uncached = torch._inductor.config.patch(fx_graph_cache=False)
    with uncached, pytest.raises(Exception, match="GeneratedError"):
        torch.compile(function)(*arguments)
    return codes[0]


@pytest.mark.parametrize(("variant", "entries"), [(Variant(), 4096), (ALL._replace(soft_cap=0.0), 4090)])
def test_a_compiled_step_moves_14_bytes_per_logit(variant, entries, monkeypatch):
    """On the CPU the reductions take a pass each. A GPU's kernel takes one for all: 12 bytes.

    With a soft cap, the code for a CPU also keeps the capped logits; that for a GPU does not.
    """
    logits, targets = torch.empty(128, 4096, dtype=torch.bfloat16), torch.zeros(128, dtype=torch.int64)
    code = generated(fused_score, (logits, None, targets, entries, variant, True), monkeypatch)
    assert passes(code, 4096) == [2, 2, 4]
    assert PRODUCTS + sum(passes(code, 4096)) == 14
    buffers = re.findall(r"empty_strided_cpu\(\(([^)]*)\)", code)
    assert buffers
    assert not [shape for shape in buffers if "4096" in shape or "4090" in shape]


@torch._dynamo.config.patch(error_on_recompile=True)
def test_chunks_and_batches_of_any_size_compile_once(monkeypatch):
    monkeypatch.setattr("lm.losses.CPU_NARROW_ROWS", 64)
    torch._dynamo.reset()
    fused = torch.compile(fused_score, backend="aot_eager")
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(50, 16, generator=generator).requires_grad_()
    for n in (640, 192, 64, 448, 97, 320):
        rows = torch.randn(n, 16, generator=generator).bfloat16().requires_grad_()
        targets = torch.randint(50, (n,), generator=generator)
        loss = linear_cross_entropy(rows, weight, targets, fused=fused)
        expected = linear_cross_entropy(rows, weight, targets)
        torch.testing.assert_close(loss, expected)
        inputs = (rows, weight)
        for ours, theirs in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", [Variant(), ALL])
def test_the_compiled_loss_equals_the_uncompiled_one(variant, dtype):
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 16, generator=generator).to(dtype).requires_grad_()
    weight, bias = (torch.randn(*shape, generator=generator).requires_grad_() for shape in ((1000, 16), (1000,)))
    targets = torch.randint(1000, (200,), generator=generator)
    results = []
    for fused in (None, torch.compile(fused_score)):
        options = {"soft_cap": variant.soft_cap, "label_smoothing": variant.label_smoothing, "z_loss": variant.z_loss}
        loss = linear_cross_entropy(rows, weight, targets, bias, **options, fused=fused)
        results.append([loss.detach(), *torch.autograd.grad(loss, (rows, weight, bias))])
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    for uncompiled, compiled in zip(*results, strict=True):
        assert (compiled - uncompiled).norm() <= tolerance * uncompiled.norm()
