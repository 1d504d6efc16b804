"""Refusals of a real peer by kind."""

from homophily.report.page.refusals import Refused, by_kind, kind_of


def test_a_kind_has_no_peer() -> None:
    assert kind_of("altered chunk (hospital-b)") == "altered chunk"
    assert kind_of("other reasons") == "other reasons"


def test_a_kind_counts_its_reasons_and_names_the_last() -> None:
    reasons = {"altered chunk (b)": 2, "too many requests": 1, "altered chunk (a)": 5, "handshake: x": 9}
    assert by_kind(reasons) == [
        Refused("handshake: x", 9, "handshake: x"),
        Refused("altered chunk", 7, "altered chunk (a)"),
        Refused("too many requests", 1, "too many requests"),
    ]
    assert by_kind({}) == []
