"""Refusals of a real peer by kind."""

from homophily.report.page.refusals import Refused, by_kind, kind_of


def test_a_kind_has_no_peer() -> None:
    assert kind_of("altered chunk (hospital-b)") == "altered chunk"
    assert kind_of("other reasons") == "other reasons"
    assert kind_of("certificate not issued by this authority") == "certificate not issued by this authority"


def test_a_kind_has_no_certificate_and_no_date() -> None:
    assert kind_of("certificate of hospital-b expired on 2026-11-01") == "certificate expired"
    assert kind_of("certificate 5c1f of hospital-b is revoked") == "certificate revoked"
    found = kind_of("certificate of hospital-b not valid yet: check the clock (hospital-b)")
    assert found == "certificate not valid yet: check the clock"
    assert kind_of("membership document expired on 2026-11-01") == "membership document expired"


def test_a_kind_counts_its_reasons_and_names_the_last() -> None:
    reasons = {"altered chunk (b)": 2, "too many requests": 1, "altered chunk (a)": 5, "handshake: x": 9}
    assert by_kind(reasons) == [
        Refused("handshake: x", 9, "handshake: x"),
        Refused("altered chunk", 7, "altered chunk (a)"),
        Refused("too many requests", 1, "too many requests"),
    ]
    assert by_kind({}) == []
