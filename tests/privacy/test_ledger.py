"""The ledger: every release is on disk before it leaves, and the promise is never broken."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homophily.errors import UserError
from homophily.privacy.accountant import epsilon_of
from homophily.privacy.ledger import Ledger, releases_in
from homophily.privacy.loss_distribution import Release

STEP = Release(2.0, 0.25, 4)


def test_a_ledger_is_read_again_with_all_its_releases(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = Ledger(path, 8.0, 1e-5)
    first.charge("fingerprint 0", Release(4.0))
    first.charge("round 1", STEP)
    first.charge("round 1", STEP)  # the same release, sent again
    again = Ledger(path, 8.0, 1e-5)
    assert again.releases == first.releases == {"fingerprint 0": Release(4.0), "round 1": STEP}
    assert again.spent == first.spent == epsilon_of([Release(4.0), STEP], 1e-5)
    assert len(path.read_text().splitlines()) == 3


def test_a_release_beyond_the_promise_is_refused_and_not_written(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl", epsilon_of([STEP] * 2, 1e-5), 1e-5)
    ledger.charge("round 1", STEP)
    ledger.charge("round 2", STEP)
    with pytest.raises(UserError, match=r"round 3 would bring what this peer has released to .* so it is not released"):
        ledger.charge("round 3", STEP)
    assert list(Ledger(tmp_path / "ledger.jsonl", ledger._epsilon, 1e-5).releases) == ["round 1", "round 2"]


steps = st.builds(Release, st.sampled_from([1.0, 2.0, 5.0]), st.sampled_from([0.1, 1.0]), st.integers(1, 20))


@given(wanted=st.lists(st.tuples(st.integers(0, 5), steps), max_size=10), epsilon=st.floats(0.5, 10.0))
@settings(max_examples=20, deadline=None)
def test_no_order_of_releases_spends_more_than_the_promise(wanted: list[tuple[int, Release]], epsilon: float) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        ledger, spent = Ledger(path, epsilon, 1e-5), 0.0
        for number, release in wanted:
            known = ledger.releases
            try:
                ledger.charge(f"round {number}", release)
            except UserError:
                assert epsilon_of([*known.values(), release], 1e-5) > epsilon
                assert ledger.releases == known
            assert spent <= ledger.spent <= epsilon
            spent = ledger.spent
        again = Ledger(path, epsilon, 1e-5)
        assert (again.releases, again.spent) == (ledger.releases, ledger.spent)


def test_a_line_is_flushed_to_the_disk_before_charge_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, path = Ledger(tmp_path / "ledger.jsonl", 8.0, 1e-5), tmp_path / "ledger.jsonl"
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(path.read_text()))
    ledger.charge("round 1", STEP)
    assert json.loads(flushed[-1].splitlines()[-1])["name"] == "round 1"


def test_an_incomplete_last_line_has_not_left_and_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path, 8.0, 1e-5).charge("round 1", STEP)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"name": "round 2", "noi')
    assert list(Ledger(path, 8.0, 1e-5).releases) == ["round 1"]
    assert path.read_bytes() == whole


def test_a_damaged_ledger_and_that_of_another_promise_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path, 8.0, 1e-5).charge("round 1", STEP)
    with pytest.raises(UserError, match="another promise"):
        Ledger(path, 9.0, 1e-5)
    path.write_text(path.read_text().replace("round 1", "round 1\nx"))
    with pytest.raises(UserError, match="is damaged, so what this peer has released is unknown"):
        Ledger(path, 8.0, 1e-5)


def test_a_ledger_that_is_only_read_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    assert releases_in(path) == {}
    assert not path.exists()
    Ledger(path, 8.0, 1e-5).charge("round 1", STEP)
    path.write_bytes(path.read_bytes() + b'{"name": "round 2", "noi')  # its peer is writing
    before = path.read_bytes()
    assert releases_in(path) == {"round 1": STEP}
    assert path.read_bytes() == before
