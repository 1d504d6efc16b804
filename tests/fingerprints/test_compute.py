"""Fingerprints: per-sample gradients at the common model, sketched, the same alone and among all."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from homophily.data.types import Split
from homophily.fingerprints import compute as fingerprint
from homophily.fingerprints import sketching
from homophily.fingerprints.compute import SAMPLES, contrasts, fingerprints
from homophily.fingerprints.fingerprint import BUCKETS, ROWS, Fingerprints, checked
from homophily.fingerprints.sketching import Sketch
from homophily.training.losses import cross_entropy, mse
from tests.training.nets import Everything, shares


class Branching(nn.Module):
    """Looks at its values, which torch.vmap cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if float(x.sum()) < 1e9 else self.layer(-x)


def prints(net: nn.Module, split: Split, loss: object = cross_entropy, seed: int = 3) -> Fingerprints:
    ids = torch.arange(len(split.start))
    return fingerprints(net, loss, split, ids, seed, lambda t: t)  # type: ignore[arg-type]


def by_hand(net: nn.Module, x: Tensor, y: Tensor, seed: int = 3) -> Tensor:
    """Sketches [n, 512] of a plain loop's gradients."""
    parameters = {name: p for name, p in net.named_parameters() if p.requires_grad}
    sketch = Sketch({name: p.shape for name, p in parameters.items()}, seed, torch.device("cpu"))
    rows = []
    for i in range(len(x)):
        loss = F.cross_entropy(net.eval()(x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(loss, list(parameters.values()))
        rows.append(sketch.of({name: g[None] for name, g in zip(parameters, grads, strict=True)})[0])
    return torch.stack(rows)


@pytest.mark.parametrize(("net", "inputs"), [(nn.Linear(6, 10), (6,)), (Everything(), (1, 8, 8)), (Branching(), (6,))])
def test_mean_and_factor_are_those_of_the_sketched_gradients(net: nn.Module, inputs: tuple[int, ...]) -> None:
    split = shares([7, 12], inputs).train
    found = prints(net, split)
    for peer in range(2):
        sketches = by_hand(net, *split.peer(peer)).double()
        assert torch.allclose(
            found.mean[peer].double(), sketches.mean(0), atol=2e-3 * float(sketches.mean(0).abs().max())
        )
        centred = sketches - sketches.mean(0)
        r = found.factor[peer].double()
        scale = float((centred.T @ centred).abs().max())
        assert torch.allclose(r.T @ r, centred.T @ centred, atol=5e-3 * scale)
    assert found.count.tolist() == [7, 12]
    assert found.factor.shape == (2, 11, BUCKETS)


def test_a_fingerprint_is_the_same_alone_and_among_all_and_in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    split = shares([7, 12, 5], (6,)).train
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 10))
    together = prints(net, split)
    one = Split(split.x, split.y, split.start[1:2], split.count[1:2])
    alone = fingerprints(net, cross_entropy, one, torch.tensor([1]), 3, lambda t: t)
    assert torch.equal(alone.mean[0], together.mean[1])
    assert torch.equal(alone.factor[0], together.factor[1, : len(alone.factor[0])])
    monkeypatch.setattr(fingerprint, "_BYTES", 1)
    assert torch.allclose(prints(net, split).mean, together.mean, atol=1e-3)


def test_peers_summed_up_together_are_as_apart() -> None:
    """The way of a GPU: many peers at once, with rows of 0 where one has fewer samples than another."""
    count, most = torch.tensor([7, 70, 1, 2, 64]), 70
    sketches = torch.randn(5, most, BUCKETS) * (torch.arange(most) < count[:, None])[..., None]
    sketches[3, 0, 5] = torch.inf
    mean, factor = fingerprint.summed_up(sketches, count)
    assert factor.shape == (5, ROWS - 1, BUCKETS)
    assert not mean[3].isfinite().all()
    for peer in (0, 1, 2, 4):
        alone, own = fingerprint.summed_up(sketches[peer : peer + 1, : count[peer]], count[peer : peer + 1])
        assert torch.allclose(mean[peer], alone[0], atol=1e-3)
        assert torch.allclose(factor[peer, : own.shape[1]], own[0], atol=1e-2)
        assert not factor[peer, own.shape[1] :].any()


def test_draws_for_many_peers_are_those_for_each() -> None:
    split = shares([ROWS, ROWS + 9, SAMPLES + 40, 3], (2,), outputs=3).train
    ids = torch.tensor([4, 2, 9, 1])
    samples, count = fingerprint._drawn(split, ids, torch.arange(4), 5)
    assert count.tolist() == [ROWS, ROWS + 9, SAMPLES, 3]
    for peer in range(4):
        alone, _ = fingerprint._drawn(split, ids, torch.tensor([peer]), 5)
        assert torch.equal(samples[peer, : count[peer]], alone[0])
        assert len(alone.unique()) == count[peer]
    assert samples[0, :ROWS].tolist() == list(range(ROWS))


def test_the_order_of_samples_does_not_matter() -> None:
    split = shares([9], (6,)).train
    net = nn.Linear(6, 10)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    shuffled = Split(split.x[order], split.y[order], split.start, split.count)
    first, again = prints(net, split), prints(net, shuffled)
    assert torch.allclose(first.mean, again.mean, atol=1e-3)
    covariances = [p.factor[0].T @ p.factor[0] for p in (first, again)]
    assert torch.allclose(*covariances, atol=5e-3 * float(covariances[0].abs().max()))


def test_regression_and_frozen_parameters() -> None:
    split = shares([6], (3,), outputs=2, regression=True).train
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    net[0].requires_grad_(False)
    found = prints(net, split, mse)
    sketch = Sketch({"1.weight": net[1].weight.shape, "1.bias": net[1].bias.shape}, 3, torch.device("cpu"))
    loss = mse(net(split.x), split.y).mean()
    grads = torch.autograd.grad(loss, [net[1].weight, net[1].bias])
    expected = sketch.of({"1.weight": grads[0][None], "1.bias": grads[1][None]})[0]
    assert torch.allclose(found.mean[0], expected, atol=2e-3 * float(expected.abs().max()))


def test_at_most_500_samples_count_and_the_draw_is_keyed() -> None:
    split = shares([SAMPLES + 200], (2,), outputs=3).train
    net = nn.Linear(2, 3)
    found = [prints(net, split, seed=s) for s in (1, 1)]
    assert found[0].count.tolist() == [SAMPLES]
    assert torch.equal(found[0].mean, found[1].mean)
    assert found[0].factor.shape == (1, ROWS - 1, BUCKETS)


def test_contrasts_have_the_scatter_of_their_rows() -> None:
    rows = torch.randn(9, 4, dtype=torch.float64)
    found = contrasts(rows)
    assert found.shape == (8, 4)
    centred = rows - rows.mean(0)
    assert torch.allclose(found.T @ found, centred.T @ centred)
    assert torch.allclose(found[:3], contrasts(rows[:4]))


def test_what_cannot_be_used_is_left_out_and_counted() -> None:
    mean, factor = torch.randn(5, BUCKETS), torch.randn(5, 3, BUCKETS)
    mean[1, 7], factor[2, 0, 0] = torch.nan, torch.inf
    found = checked(mean, factor, torch.tensor([4, 4, 4, 1, 4]))
    assert found.count.tolist() == [4, 0, 0, 0, 4]
    assert bool(found.mean.isfinite().all())
    size = 2 * (512 + 512 + 511 + 510) + 16  # the mean and three rows of a triangle
    assert found.bytes.tolist() == [size, 0, 0, 0, size]


def test_small_gradients_keep_their_digits_on_the_wire() -> None:
    values = torch.randn(4, 50, dtype=torch.float64)
    scale = torch.tensor([[1e-30], [1e-9], [1.0], [1e9]], dtype=torch.float64)  # each peer's own
    found = fingerprint.rounded(values * scale).double() / scale
    assert bool(((found - values).abs().amax(1) < 1e-3 * values.abs().amax(1)).all())


@pytest.mark.parametrize("net", [nn.Sequential(nn.Linear(5000, 10), *more) for more in ([], [nn.Tanh()])])
def test_memory_is_bounded_by_pieces_of_samples(monkeypatch: pytest.MonkeyPatch, net: nn.Module) -> None:
    """A wide model is differentiated a few samples at a time, as a chain of layers or by torch.vmap."""
    most = []
    add = sketching.add

    def watched(out: Tensor, values: Tensor, bucket: Tensor, sign: Tensor) -> None:
        most.append(values.numel() * values.element_size())
        add(out, values, bucket, sign)

    monkeypatch.setattr(sketching, "add", watched)
    monkeypatch.setattr(fingerprint, "_BYTES", 4 << 20)
    prints(net, shares([40], (5000,)).train)
    assert max(most) <= (4 << 20) / 3
    assert len(most) > 10
