"""Packages of an extra."""

import math

import pytest

from homophily import UserError
from homophily.plugins.optional import imported


def test_an_installed_module_is_returned() -> None:
    assert imported("math", "tables", "a table") is math


def test_a_missing_package_names_what_needs_it_and_the_extra() -> None:
    with pytest.raises(UserError) as refused:
        imported("no_such_package.part", "trackers", "tracker 'mine'")
    assert str(refused.value) == "tracker 'mine' needs no_such_package: pip install 'homophily[trackers]'"
