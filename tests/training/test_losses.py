"""A sample's loss is a mean over its positions that count, its labels or its outputs."""

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from homophily.data.task_kinds import IGNORED
from homophily.training.losses import binary_cross_entropy, cross_entropy, output_gradients


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.lists(st.lists(st.integers(-1, 3), min_size=5, max_size=5), min_size=1, max_size=6))
def test_a_samples_loss_is_the_mean_over_its_positions_that_count(rows: list[list[int]]) -> None:
    y = torch.tensor(rows)
    y[y < 0] = IGNORED
    outputs = drawn(len(y), 4, 5)
    found = cross_entropy(outputs, y)
    for i, sample in enumerate(y):
        there = (sample != IGNORED).nonzero()[:, 0]
        expected = F.cross_entropy(outputs[i][:, there].T, sample[there]) if len(there) else torch.tensor(0.0)
        assert torch.allclose(found[i], expected.double())


def test_a_sample_without_a_position_that_counts_has_loss_0_and_no_gradient() -> None:
    outputs = drawn(2, 4, 3).requires_grad_()
    y = torch.tensor([[IGNORED] * 3, [0, IGNORED, 2]])
    losses = cross_entropy(outputs, y)
    losses.sum().backward()
    assert losses[0] == 0
    assert outputs.grad is not None
    assert not outputs.grad[0].any()
    assert outputs.grad[1].any()


def test_padding_does_not_change_a_loss() -> None:
    outputs, y = drawn(3, 4, 6), torch.arange(18).view(3, 6) % 4
    padded = torch.cat([outputs, drawn(3, 4, 2, seed=1)], 2), F.pad(y, (0, 2), value=IGNORED)
    assert torch.allclose(cross_entropy(*padded), cross_entropy(outputs, y))


def test_positions_may_be_the_pixels_of_an_image() -> None:
    outputs, y = drawn(2, 3, 4, 5), torch.arange(40).view(2, 4, 5) % 3
    expected = F.cross_entropy(outputs, y, reduction="none").flatten(1).mean(1)
    assert torch.allclose(cross_entropy(outputs, y), expected)


def test_binary_cross_entropy_is_the_mean_over_labels() -> None:
    outputs, y = drawn(3, 4), (drawn(3, 4, seed=1) > 0).double()
    p = outputs.sigmoid()
    by_hand = -(y * p.log() + (1 - y) * (1 - p).log()).sum(1) / 4
    assert torch.allclose(binary_cross_entropy(outputs, y), by_hand)


def test_the_gradient_of_binary_cross_entropy_is_that_of_autograd() -> None:
    outputs, y = drawn(3, 4).requires_grad_(), (drawn(3, 4, seed=1) > 0).double()
    (expected,) = torch.autograd.grad(binary_cross_entropy(outputs, y).sum(), outputs)
    assert torch.allclose(output_gradients[binary_cross_entropy](outputs.detach(), y), expected)
