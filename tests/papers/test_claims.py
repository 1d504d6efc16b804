"""A claim is a formula over cells: it holds, does not hold, or has cells that were not computed."""

import pytest

from homophily.errors import UserError
from homophily.papers.claims import holds

CELLS = {"panm": {"mnist": 90.0, "cifar": 50.0}, "oracle": {"mnist": 89.5, "cifar": 52.0}, "empty": {}}


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        ("panm.mnist >= oracle.mnist", True),
        ("panm.cifar > oracle.cifar", False),
        ("panm.cifar > oracle.cifar - 3", True),
        ("panm.mnist - oracle.mnist < 0.4", False),
        ("80 < panm.mnist < 95", True),
        ("panm.mnist > 80 and panm.cifar > 80", False),
        ("panm.mnist > 80 or panm.cifar > 80", True),
        ("panm.mnist == 90", True),
        ("mean(panm) > 69", True),
        ("max(panm.mnist, oracle.mnist) >= 90", True),
        ("abs(panm.cifar - oracle.cifar) * 2 / 4 <= 1", True),
        ("-panm.cifar < 0", True),
        ("pens.mnist > 1", None),
        ("panm.digits > 1", None),
        ("mean(empty) > 1", None),
    ],
)
def test_claims(check: str, answer: bool | None) -> None:
    assert holds(check, CELLS) is answer


@pytest.mark.parametrize(
    "check", ["__import__('os')", "panm.mnist.real > 1", "open('x') > 1", "panm['mnist'] > 1", "1 >"]
)
def test_nothing_else_is_evaluated(check: str) -> None:
    with pytest.raises(UserError, match="claim"):
        holds(check, CELLS)
