"""The Triton kernel of the loss equals the formula: on a GPU, or in Triton's interpreter with TRITON_INTERPRET=1."""

import os

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from lm.heads import gpu_score
from lm.logit_loss import Variant, fused_score
from lm.losses import linear_cross_entropy

ON_A_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_A_GPU else "cpu")
pytestmark = [pytest.mark.gpu] if ON_A_GPU else []  # other tests do not see the GPU
VARIANTS = {
    "plain": Variant(),
    "capped": Variant(soft_cap=5.0),
    "smoothed": Variant(label_smoothing=0.1),
    "z-loss": Variant(z_loss=1e-2),
    "all": Variant(soft_cap=15.0, label_smoothing=0.1, z_loss=1e-3),
}


@pytest.fixture(scope="module")
def kernel():
    """Return `triton_score` with blocks so small that a row has several."""
    if not (ON_A_GPU or os.environ.get("TRITON_INTERPRET") == "1"):
        pytest.skip("needs a GPU, or Triton and TRITON_INTERPRET=1")
    pytest.importorskip("triton")
    from lm import logit_loss_triton

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logit_loss_triton, "BLOCK", 128)
        yield logit_loss_triton.triton_score


def rows(entries, columns, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(7, columns, generator=generator)
    targets = torch.randint(entries, (7,), generator=generator)
    targets[:2] = torch.tensor([0, entries - 1])
    return logits.to(DEVICE, dtype), targets.to(DEVICE)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("entries", "columns"), [(1, 64), (128, 128), (300, 320), (1000, 1024)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_losses_and_gradients_are_those_of_the_formula(kernel, variant, dtype, entries, columns, with_bias):
    logits, targets = rows(entries, columns, dtype)
    bias = torch.linspace(-1, 1, entries, device=DEVICE).to(dtype) if with_bias else None
    exact = logits.double()
    expected = fused_score(exact, None if bias is None else bias.double(), targets, entries, variant, True)
    before = logits.clone()
    alone = kernel(logits, bias, targets, entries, variant, False)
    assert torch.equal(logits, before)  # without a gradient, the logits stay
    found = kernel(logits, bias, targets, entries, variant, True)
    assert torch.equal(found, alone)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    tolerance = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    atol = tolerance * (0.1 if tolerance > 1e-4 else 1)
    torch.testing.assert_close(logits.double(), exact, rtol=tolerance, atol=atol)
    assert not logits[:, entries:].any()


def test_logits_far_from_zero_lose_nothing(kernel):
    logits, targets = rows(300, 320, torch.float32)
    for far in (3e4, -3e4):
        moved = logits + far
        found = kernel(moved.clone(), None, targets, 300, Variant(), True)
        torch.testing.assert_close(found, F.cross_entropy(moved[:, :300], targets, reduction="none"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_of_a_gpu_is_computed_by_the_kernel(dtype):
    score = gpu_score(DEVICE)
    assert score is not None
    generator = torch.Generator().manual_seed(0)
    hidden, matrix = (torch.randn(n, 64, generator=generator).to(DEVICE, dtype) for n in (40, 300))
    targets = torch.randint(300, (40,), generator=generator).to(DEVICE)
    gradients = []
    for fused in (score, None):
        inputs = [x.clone().requires_grad_() for x in (hidden, matrix)]
        linear_cross_entropy(inputs[0], inputs[1], targets, fused=fused).backward()
        gradients.append([x.grad for x in inputs])
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2 if dtype == torch.bfloat16 else 1e-4)
