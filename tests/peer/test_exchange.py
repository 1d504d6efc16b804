"""What members of the federation may send that is well formed, signed, and meant to spoil a round."""

from __future__ import annotations

import pytest
import torch

from homophily.fingerprint import SAMPLES, summed_up
from homophily.introductions import BUCKETS, ROWS, checked
from homophily.kinship import kinship
from homophily.methods.dac import Dac
from homophily.methods.dpg import Dpg
from homophily.methods.pens import Pens
from homophily.peer.exchange import FieldExchange, Pace, Print, _out_of_proportion
from homophily.peer.members import Members, Status


def fingerprint(seed: int, scale: float = 1.0) -> Print:
    drawn = torch.randn(ROWS, BUCKETS, generator=torch.Generator().manual_seed(seed))
    drawn[:, seed % 2 * 5] += 3.0
    (mean,), (factor,) = summed_up(drawn[None] * scale, torch.tensor([ROWS]))
    return mean, factor, ROWS


def hostile(mean: float, factor: float) -> Print:
    return torch.full((BUCKETS,), mean), torch.full((ROWS - 1, BUCKETS), factor).triu(), SAMPLES


def compared(prints: list[Print]) -> torch.Tensor:
    means, factors, counts = zip(*prints, strict=True)
    made = checked(torch.stack(means), torch.stack(factors), torch.tensor(counts))
    everyone = torch.arange(len(prints))
    return kinship(made, everyone, 0).weights(everyone, everyone.expand(len(prints), -1))


def test_a_fingerprint_that_would_drown_all_others_is_left_out() -> None:
    prints = {id: fingerprint(id) for id in range(6)} | {6: hostile(1e10, 0.0)}
    with pytest.raises(RuntimeError, match="cholesky"):
        compared(list(prints.values()))
    assert _out_of_proportion(prints) == {6}


def test_honest_fingerprints_are_compared_however_unlike_their_scales() -> None:
    prints = {id: fingerprint(id, scale) for id, scale in enumerate([1.0, 1.0, 30.0, 0.001, 1000.0, 1.0])}
    assert _out_of_proportion(prints) == set()


@pytest.mark.parametrize("mean", [0.0, 1e-38, 1.0, 2.0**15, 2.0**17, 1e20, 1e38])
@pytest.mark.parametrize("factor", [0.0, 1e-38, 1.0, 2.0**15, 1e30])
def test_whatever_a_member_sends_the_others_can_be_compared(mean: float, factor: float) -> None:
    prints = {id: fingerprint(id) for id in range(4)} | {4: hostile(mean, factor)}
    left = [made for id, made in prints.items() if id not in _out_of_proportion(prints)]
    assert len(left) >= 4
    assert bool(compared(left).isfinite().all())


def test_in_lockstep_only_who_has_finished_is_asked_for_an_older_model() -> None:
    made = Members("me", ["me", "late", "over"], True, frozenset)
    for name, finished in (("late", False), ("over", True)):
        made.came(name)
        made.update(name, Status(time=1, trained=3, finished=finished))
    exchange = object.__new__(FieldExchange)
    exchange.members = made
    for lockstep, wanted in ((True, {"late": 5, "over": 3}), (False, {"late": 3, "over": 3})):
        exchange.pace = Pace(lockstep, deadline=1.0, staleness=3, wait_for=0, hello=1.0)
        assert {name: exchange._newest(name, 5) for name in ("late", "over")} == wanted
    exchange.pace = Pace(True, deadline=1.0, staleness=3, wait_for=0, hello=1.0)
    assert exchange._newest("over", 2) == 2  # who comes back is still given what is on the shelf


def test_with_another_list_of_peers_the_others_are_remembered() -> None:
    for method, of_the_new in ((Pens(), 0.0), (Dac(), torch.nan), (Dpg(), torch.nan)):
        exchange = object.__new__(FieldExchange)
        exchange._ids, exchange.method, before = torch.tensor([3, 5, 9]), method, torch.tensor([3, 4, 9])
        numbers = exchange._in_this_book(torch.tensor([[0.1, 0.2, 0.3]]), before)
        assert torch.equal(numbers.nan_to_num(nan=-1.0), torch.tensor([[0.1, of_the_new, 0.3]]).nan_to_num(nan=-1.0))
        assert torch.equal(
            exchange._in_this_book(torch.tensor([[True, True, False]]), before), torch.tensor([[True, False, False]])
        )
        assert exchange._in_this_book(torch.tensor([7]), before).tolist() == [7]  # not a table over the book
