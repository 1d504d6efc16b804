"""The mean of products of LoRA factors, without forming it."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from homophily.config.schema import Lora
from homophily.federation.factors import best_factors
from homophily.federation.layout import Layout
from homophily.federation.merging import MergeGroup, uniform
from homophily.federation.rows import Federation
from homophily.models.lora import add_adapters, freeze_base


def mean_product(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = (weight[:, None, None] * (b @ a)).sum(0)
    return out


@settings(max_examples=30, deadline=None)
@given(
    models=st.integers(1, 5), rank=st.integers(1, 4), inputs=st.integers(1, 9), outputs=st.integers(1, 9),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_the_new_product_is_the_best_of_its_rank(models: int, rank: int, inputs: int, outputs: int, seed: int) -> None:
    torch.manual_seed(seed)
    a, b = torch.randn(models, rank, inputs).double(), torch.randn(models, outputs, rank).double()
    weight = torch.rand(models).double() + 0.1
    weight /= weight.sum()
    new_a, new_b = best_factors(a, b, weight)
    mean = mean_product(a, b, weight)
    u, s, vh = torch.linalg.svd(mean, full_matrices=False)
    best = (u[:, :rank] * s[:rank]) @ vh[:rank]
    assert new_a.shape == (rank, inputs)
    assert new_b.shape == (outputs, rank)
    assert float((new_b @ new_a - mean).norm()) <= float((best - mean).norm()) + 1e-9


def test_a_product_of_the_rank_is_kept_and_zero_products_can_still_learn() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(1, 3, 7).double(), torch.randn(1, 5, 3).double()
    new_a, new_b = best_factors(a.expand(4, -1, -1), b.expand(4, -1, -1), torch.full((4,), 0.25))
    assert torch.allclose(new_b @ new_a, (b @ a)[0])
    new_a, new_b = best_factors(a.expand(4, -1, -1), torch.zeros(4, 5, 3), torch.full((4,), 0.25))
    assert not bool(new_b.any())
    assert torch.allclose(new_a.norm(), a.norm()), "A keeps its norm, so B gets a gradient"


def adapted(merge: str) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Linear(4, 2))
    lora = Lora.model_validate({"rank": 2, "targets": ["0", "2"], "train": ["3"], "merge": merge})
    freeze_base(net, lora)
    add_adapters(net, lora)
    return net


def group(members: Tensor, mask: Tensor) -> MergeGroup:
    mine = members == torch.arange(len(members))[:, None]
    return MergeGroup(members, members, mask, mine, torch.ones(members.shape).double(), torch.ones(members.shape))


def test_a_merge_of_products_gives_the_same_bits_for_one_peer_and_for_many() -> None:
    layout = Layout.of(adapted("product"), products=True)
    assert layout.factors == (("0.lora_A", "0.lora_B"), ("2.lora_A", "2.lora_B"))
    rows = torch.randn(4, layout.width)
    rows[3, 0] = torch.nan  # diverged: left out
    members = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3], [0, 2, 2, 2], [0, 1, 2, 3]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]]).bool()
    together = Federation(layout, rows.clone(), {})
    together.merge(group(members, mask), uniform)
    for peer in range(3):
        alone = Federation(layout, rows.clone(), {})
        one = group(members, mask & (torch.arange(4) == peer)[:, None])
        alone.merge(one, uniform)
        assert torch.equal(alone.rows[peer], together.rows[peer])
    before, after = layout.views(rows), layout.views(together.rows)
    exact = mean_product(before["0.lora_A"][:3], before["0.lora_B"][:3], torch.full((3,), 1 / 3))
    plain = before["0.lora_B"][:3].mean(0) @ before["0.lora_A"][:3].mean(0)
    found = after["0.lora_B"][0] @ after["0.lora_A"][0]
    assert float((found - exact).norm()) < float((plain - exact).norm())
    assert torch.allclose(after["3.weight"][0], before["3.weight"][:3].mean(0)), "other columns are averaged"
    assert Layout.from_json(layout.to_json()) == layout


def test_with_a_frozen_a_the_mean_of_factors_is_the_mean_of_products() -> None:
    layout = Layout.of(adapted("freeze-a"))
    assert "0.lora_A" in layout.frozen
    assert [c.name for c in layout.columns] == ["0.lora_B", "2.lora_B", "3.weight", "3.bias"]
