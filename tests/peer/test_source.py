"""Malicious fingerprints of members, which models are requested, and what a peer counts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from homophily.federation.layout import Layout
from homophily.federation.merging import merges
from homophily.federation.rows import Federation
from homophily.fingerprints.compute import summed_up
from homophily.fingerprints.embedding import BUCKETS
from homophily.fingerprints.fingerprint import ROWS, SAMPLES, SMALL_FEDERATION, checked
from homophily.methods.base import Method
from homophily.methods.dac import Dac
from homophily.methods.dpg import Dpg
from homophily.methods.kin.families import kinship
from homophily.methods.kin.method import Kin
from homophily.methods.pens import Pens
from homophily.peer.logs import peer_logger
from homophily.peer.membership import Announcer, Status
from homophily.peer.network import NamedObserver
from homophily.peer.pacing import Pacing, SyncPolicy
from homophily.peer.prints import PlainPrints, Print
from homophily.peer.source import LocalPeer, NetworkSource, too_large
from homophily.peer.wire import ExpectedModel, pack_print
from homophily.simulation.exchange import PeerExchange
from tests.peer.linked import opened
from tests.peer.people import People, Village


def fingerprint(seed: int, scale: float = 1.0) -> Print:
    drawn = torch.randn(ROWS, BUCKETS, generator=torch.Generator().manual_seed(seed))
    drawn[:, seed % 2 * 5] += 3.0
    (mean,), (factor,) = summed_up(drawn[None] * scale, torch.tensor([ROWS]), torch.tensor([seed]), 0, SMALL_FEDERATION)
    return mean, factor, ROWS


def hostile(mean: float, factor: float) -> Print:
    return torch.full((BUCKETS,), mean), torch.full((ROWS - 1, BUCKETS), factor).triu(), SAMPLES


def compared(prints: list[Print]) -> torch.Tensor:
    means, factors, counts = zip(*prints, strict=True)
    made = checked(torch.stack(means), torch.stack(factors), torch.tensor(counts), SMALL_FEDERATION)
    everyone = torch.arange(len(prints))
    return kinship(made, everyone, 0).weights(everyone, everyone.expand(len(prints), -1), False)


def _too_large(prints: dict[int, Print]) -> set[int]:
    form = PlainPrints(lambda: checked(*(torch.zeros(0),) * 3, SMALL_FEDERATION), SMALL_FEDERATION, NETWORK)
    return too_large({id: form.largest(made) for id, made in prints.items()})


def test_a_fingerprint_with_too_large_values_is_left_out() -> None:
    prints = {id: fingerprint(id) for id in range(6)} | {6: hostile(1e10, 0.0)}
    with pytest.raises(RuntimeError, match="cholesky"):
        compared(list(prints.values()))
    assert _too_large(prints) == {6}


def test_honest_fingerprints_are_compared_however_unlike_their_scales() -> None:
    prints = {id: fingerprint(id, scale) for id, scale in enumerate([1.0, 1.0, 30.0, 0.001, 1000.0, 1.0])}
    assert _too_large(prints) == set()


@pytest.mark.parametrize("mean", [0.0, 1e-38, 1.0, 2.0**15, 2.0**17, 1e20, 1e38])
@pytest.mark.parametrize("factor", [0.0, 1e-38, 1.0, 2.0**15, 1e30])
def test_whatever_a_member_sends_the_others_can_be_compared(mean: float, factor: float) -> None:
    prints = {id: fingerprint(id) for id in range(4)} | {4: hostile(mean, factor)}
    left = [made for id, made in prints.items() if id not in _too_large(prints)]
    assert len(left) >= 4
    assert bool(compared(left).isfinite().all())


NETWORK = 11
FINGERPRINT = 2 * (BUCKETS + sum(BUCKETS - row for row in range(ROWS - 1))) + 16  # bytes: mean, triangle, two scales
FREE = SyncPolicy(False, deadline=10.0, staleness=3, wait_for=0, rejoin_seconds=1.0)
LOCKSTEP = SyncPolicy(True, deadline=1.0, staleness=3, wait_for=0, rejoin_seconds=1.0)
CONTACTS = {2: "bob", 3: "carol", 4: "dave"}
LAYOUT = Layout.of(nn.Linear(1, 1, bias=False))


def alices_source(
    village: Village,
    method: Method,
    policy: SyncPolicy = FREE,
    contacts: dict[int, str] = CONTACTS,
) -> NetworkSource:
    """Where alice gets the models of others from."""
    transfer, (mean, factor, count) = village.transfer["alice"], fingerprint(0)
    own = checked(mean[None], factor[None], torch.tensor([count]), SMALL_FEDERATION)
    announcer = Announcer(lambda status: None, lambda: village.near("alice"), 1.0)
    return NetworkSource(
        LocalPeer(1, 0, ROWS, torch.zeros(1, 1), contacts, method.hops, method.unknown, method.uses_fingerprints),
        LAYOUT,
        ExpectedModel(1, torch.float32, (), NETWORK, 4),
        PlainPrints(lambda: own, SMALL_FEDERATION, NETWORK),
        None,
        transfer,
        transfer.members,
        announcer,
        Pacing(policy, transfer.members, announcer, list(contacts.values()), peer_logger("alice")),
    )


def test_in_lockstep_only_a_finished_peer_is_asked_for_an_older_model(people: People) -> None:
    village = opened(Village(people, [("alice", "bob"), ("alice", "carol")]))
    members = village.transfer["alice"].members
    for name, finished in (("bob", False), ("carol", True)):
        members.update(name, Status(time=2, trained=3, finished=finished, neighbours=("alice",)))
    for policy, wanted in ((LOCKSTEP, {"bob": 5, "carol": 3}), (FREE, {"bob": 3, "carol": 3})):
        source = alices_source(village, Kin(), policy)
        assert {name: source._newest(name, 5) for name in ("bob", "carol")} == wanted
    # A peer that comes back can still fetch what is published.
    assert alices_source(village, Kin(), LOCKSTEP)._newest("carol", 2) == 2


def test_memory_of_remaining_peers_survives_a_change_of_allow(people: People) -> None:
    village = opened(Village(people, [("alice", "bob")]))
    stored = {"contacts": torch.tensor([3, 4, 9])}
    numbers = {"announced": 0, "printed": -1, "print": ""}
    memory = {
        "values": torch.tensor([[0.1, 0.2, 0.3]]),
        "set": torch.tensor([[True, True, False]]),
        "count": torch.tensor([7]),  # not a table over the contacts
    }
    for method, of_the_new in ((Pens(), 0.0), (Dac(), torch.nan), (Dpg(), torch.nan)):
        source = alices_source(village, method, contacts={3: "bob", 5: "carol", 9: "dave"})
        found = source.restore(stored, numbers, memory)
        assert torch.equal(
            found["values"].nan_to_num(nan=-1.0), torch.tensor([[0.1, of_the_new, 0.3]]).nan_to_num(nan=-1.0)
        )
        assert torch.equal(found["set"], torch.tensor([[True, False, False]]))
        assert found["count"].tolist() == [7]


# What is counted


def alices_exchange(village: Village) -> PeerExchange:
    """Of a peer that looks for its kin, at a free pace."""
    source = alices_source(village, Kin())
    return PeerExchange(Kin(), merges.get("uniform"), None, source, NamedObserver(source), 1, torch.device("cpu"))


def begin_round(exchange: PeerExchange, round: int) -> None:
    exchange.before_training(Federation(LAYOUT, torch.zeros(1, 1), {}), round, torch.tensor([True]))


def shows(village: Village, name: str, number: int, found: Print) -> None:
    """A peer has made a fingerprint, and alice hears of its number."""
    village.transfer[name].publish("print", number, pack_print(*found, NETWORK))
    members = village.transfer["alice"].members
    members.update(name, Status(members.status(name).time + 1, printed=number, neighbours=tuple(village.near(name))))


def test_each_fingerprint_is_counted_once_and_times_its_hops(people: People) -> None:
    village = opened(Village(people, [("alice", "bob"), ("bob", "carol"), ("alice", "dave")]))
    exchange = alices_exchange(village)
    bills: list[float] = []

    def next_round() -> None:
        begin_round(exchange, len(bills) + 1)
        bills.append(exchange.traffic.bytes / FINGERPRINT)

    next_round()
    shows(village, "bob", 0, fingerprint(1))
    next_round()
    shows(village, "carol", 0, fingerprint(2))
    next_round()
    next_round()
    shows(village, "dave", 0, (torch.zeros(BUCKETS), torch.zeros(0, BUCKETS), 1))  # too few samples for one
    next_round()
    shows(village, "bob", 1, fingerprint(3))  # it has come back with other data
    next_round()
    assert bills == [0, 1, 3, 3, 3, 4]


def test_a_fingerprint_that_is_left_out_is_still_counted(people: People) -> None:
    village = opened(Village(people, [("alice", "bob"), ("alice", "carol"), ("alice", "dave")]))
    exchange = alices_exchange(village)
    for name, found in {"bob": fingerprint(1), "carol": fingerprint(2), "dave": hostile(1e10, 0.0)}.items():
        shows(village, name, 0, found)
    begin_round(exchange, 1)
    assert village.transfer["alice"].refusals.counts() == {"fingerprint values too large to compare (dave)": 1}
    assert exchange.traffic.bytes == 3 * FINGERPRINT


def test_after_a_restart_fingerprints_travel_again_and_are_counted_again(people: People) -> None:
    village = opened(Village(people, [("alice", "bob"), ("bob", "carol"), ("alice", "dave")]))
    before, after = alices_exchange(village), alices_exchange(village)
    shows(village, "bob", 0, fingerprint(1))
    shows(village, "carol", 0, fingerprint(2))
    begin_round(before, 1)
    after.restore(before.tensors(), before.numbers())
    assert after.traffic.bytes == 3 * FINGERPRINT
    begin_round(after, 2)
    assert after.traffic.bytes == 6 * FINGERPRINT
