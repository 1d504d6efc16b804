"""The weights of merges, and robust merges with Byzantine models."""

import torch

from homophily.federation.merging import MergeGroup, fedavg, fedsim, krum, median, merges, trimmed_mean, uniform


def group(**over: torch.Tensor) -> MergeGroup:
    base = {
        "ids": torch.tensor([[0, 2, 3], [1, 2, -1]]),
        "rows": torch.tensor([[0, 2, 3], [1, 2, 0]]),
        "mask": torch.tensor([[True, True, True], [True, True, False]]),
        "is_self": torch.tensor([[True, False, False], [False, True, False]]),
        "samples": torch.tensor([[10.0, 30.0, 60.0], [20.0, 20.0, 10.0]]).double(),
        "similarity": torch.tensor([[-torch.inf, 0.5, 0.25], [-0.5, -torch.inf, -torch.inf]]).double(),
    }
    return MergeGroup(**{**base, **over})


def test_uniform_and_fedavg_by_hand() -> None:
    assert torch.allclose(uniform(group()), torch.tensor([[1, 1, 1], [1.5, 1.5, 0]]).double() / 3)
    assert torch.allclose(fedavg(group()), torch.tensor([[0.1, 0.3, 0.6], [0.5, 0.5, 0.0]]).double())


def test_diverged_models_get_weight_zero() -> None:
    diverged = group(mask=torch.tensor([[False, True, True], [True, True, False]]))
    assert torch.allclose(uniform(diverged)[0], torch.tensor([0, 0.5, 0.5]).double())
    assert torch.allclose(fedavg(diverged)[0], torch.tensor([0, 1 / 3, 2 / 3]).double())


def test_fedsim_gives_the_own_model_the_weight_of_the_most_similar_partner() -> None:
    weights = fedsim(group())
    assert torch.allclose(weights[0], torch.tensor([0.4, 0.4, 0.2]).double())
    assert weights[1].tolist() == [0.0, 0.0, 0.0]  # no positive similarity: the own model is kept


def test_fedsim_replaces_a_diverged_model_by_the_mean_of_its_partners() -> None:
    mask, nothing = torch.tensor([[False, True, True], [True, False, False]]), torch.zeros(2, 3).double()
    weights = fedsim(group(mask=mask, similarity=nothing))
    assert weights.tolist() == [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]
    known = fedsim(group(mask=mask))
    assert torch.allclose(known[0], torch.tensor([0, 2 / 3, 1 / 3]).double())


def test_median_trimmed_mean_and_krum_are_robust_to_one_byzantine_model() -> None:
    good = torch.tensor([[1.0, 10.0], [1.2, 10.2], [0.8, 9.8], [1.1, 10.1]])
    rows = torch.cat([good, torch.tensor([[1e9, -1e9]])])[None]
    mask, own = torch.ones(1, 5, dtype=torch.bool), torch.arange(5)[None] == 0
    for merge in (median, trimmed_mean, krum):
        assert float((merge(rows, mask, own)[0] - good.mean(0)).abs().max()) < 0.2
    assert torch.allclose(median(rows, mask, own), torch.tensor([[1.1, 10.0]]))
    assert torch.allclose(trimmed_mean(rows, mask, own), torch.tensor([[(1 + 1.2 + 1.1) / 3, (10 + 9.8 + 10.1) / 3]]))
    assert krum(rows, mask, own)[0].tolist() in good.tolist()


def test_krum_ignores_padding_and_breaks_ties_by_the_own_model() -> None:
    rows = torch.tensor([[[1.0], [3.0], [0.0], [0.0]]])
    mask = torch.tensor([[True, True, False, False]])
    for mine in (0, 1):
        own = torch.arange(4)[None] == mine
        assert median(rows, mask, own).tolist() == [[2.0]]
        assert trimmed_mean(rows, mask, own).tolist() == [[2.0]]
        assert krum(rows, mask, own).tolist() == [rows[0, mine].tolist()]


def test_a_diverged_peer_takes_the_model_of_its_only_partner() -> None:
    rows = torch.tensor([[[0.0, 0.0], [5.0, 5.0]]])
    mask, own = torch.tensor([[False, True]]), torch.tensor([[True, False]])
    for merge in (median, trimmed_mean, krum):
        assert merge(rows, mask, own).tolist() == [[5.0, 5.0]]


def test_all_merges_are_listed() -> None:
    assert list(merges) == ["fedavg", "fedsim", "krum", "median", "trimmed-mean", "uniform"]


def test_joined_groups_offset_ids_and_runs_without_a_group_do_not_merge() -> None:
    whole = group()
    narrow = MergeGroup(*(column[:, :2] for column in vars(whole).values()))
    joined = MergeGroup.joined([whole, None, narrow], peers=2)
    assert joined.ids.tolist()[:2] == whole.ids.tolist()
    assert joined.ids.tolist()[2:] == [[-1] * 3] * 2 + [[*(narrow.ids[row] + 4).tolist(), -1] for row in range(2)]
    assert joined.rows.tolist()[4:] == [[*(narrow.rows[row] + 4).tolist(), 4] for row in range(2)]
    assert joined.mask.sum(1).tolist() == [3, 2, 0, 0, 2, 2]
    assert torch.equal(fedavg(joined)[:2], fedavg(whole))
    assert torch.equal(fedavg(joined)[4:, :2], fedavg(narrow))
