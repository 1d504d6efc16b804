"""Weights of a merge, and merges that bad peers cannot steer."""

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


def test_diverged_models_count_for_nothing() -> None:
    diverged = group(mask=torch.tensor([[False, True, True], [True, True, False]]))
    assert torch.allclose(uniform(diverged)[0], torch.tensor([0, 0.5, 0.5]).double())
    assert torch.allclose(fedavg(diverged)[0], torch.tensor([0, 1 / 3, 2 / 3]).double())


def test_fedsim_gives_oneself_the_weight_of_the_most_similar() -> None:
    weights = fedsim(group())
    assert torch.allclose(weights[0], torch.tensor([0.4, 0.4, 0.2]).double())
    assert weights[1].tolist() == [0.0, 0.0, 0.0]  # nothing positive: the own model is kept


def test_fedsim_lets_diverged_models_recover_by_partners_of_whom_nothing_is_known() -> None:
    mask, nothing = torch.tensor([[False, True, True], [True, False, False]]), torch.zeros(2, 3).double()
    weights = fedsim(group(mask=mask, similarity=nothing))
    assert weights.tolist() == [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]
    known = fedsim(group(mask=mask))
    assert torch.allclose(known[0], torch.tensor([0, 2 / 3, 1 / 3]).double())


def test_median_trimmed_mean_and_krum_shrug_off_one_bad_model() -> None:
    good = torch.tensor([[1.0, 10.0], [1.2, 10.2], [0.8, 9.8], [1.1, 10.1]])
    rows = torch.cat([good, torch.tensor([[1e9, -1e9]])])[None]
    mask, own = torch.ones(1, 5, dtype=torch.bool), torch.arange(5)[None] == 0
    for merge in (median, trimmed_mean, krum):
        assert float((merge(rows, mask, own)[0] - good.mean(0)).abs().max()) < 0.2
    assert torch.allclose(median(rows, mask, own), torch.tensor([[1.1, 10.0]]))
    assert torch.allclose(trimmed_mean(rows, mask, own), torch.tensor([[(1 + 1.2 + 1.1) / 3, (10 + 9.8 + 10.1) / 3]]))
    assert krum(rows, mask, own)[0].tolist() in good.tolist()


def test_padding_is_not_a_model_and_of_equals_krum_takes_ones_own() -> None:
    rows = torch.tensor([[[1.0], [3.0], [0.0], [0.0]]])
    mask = torch.tensor([[True, True, False, False]])
    for mine in (0, 1):
        own = torch.arange(4)[None] == mine
        assert median(rows, mask, own).tolist() == [[2.0]]
        assert trimmed_mean(rows, mask, own).tolist() == [[2.0]]
        assert krum(rows, mask, own).tolist() == [rows[0, mine].tolist()]


def test_a_peer_whose_model_has_diverged_takes_its_only_partners() -> None:
    rows = torch.tensor([[[0.0, 0.0], [5.0, 5.0]]])
    mask, own = torch.tensor([[False, True]]), torch.tensor([[True, False]])
    for merge in (median, trimmed_mean, krum):
        assert merge(rows, mask, own).tolist() == [[5.0, 5.0]]


def test_all_merges_are_listed() -> None:
    assert list(merges) == ["fedavg", "fedsim", "krum", "median", "trimmed-mean", "uniform"]


def test_groups_of_several_runs_count_on_and_a_run_without_one_merges_nobody() -> None:
    whole = group()
    narrow = MergeGroup(*(column[:, :2] for column in vars(whole).values()))
    joined = MergeGroup.joined([whole, None, narrow], peers=2)
    assert joined.ids.tolist()[:2] == whole.ids.tolist()
    assert joined.ids.tolist()[2:] == [[-1] * 3] * 2 + [[*(narrow.ids[row] + 4).tolist(), -1] for row in range(2)]
    assert joined.rows.tolist()[4:] == [[*(narrow.rows[row] + 4).tolist(), 4] for row in range(2)]
    assert joined.mask.sum(1).tolist() == [3, 2, 0, 0, 2, 2]
    assert torch.equal(fedavg(joined)[:2], fedavg(whole))
    assert torch.equal(fedavg(joined)[4:, :2], fedavg(narrow))
