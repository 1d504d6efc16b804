"""kin on every kind of data: tables with missing values, tokens, numbers and several outputs as targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import nn

import homophily
from homophily.experiments.discovery import Discovery
from tests.methods.kin.test_any_network import BagOfTokens

PEERS, SAMPLES = 24, 40
TWO = [list(range(12)), list(range(12, 24))]
Rows = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def peers(draw: Callable[[np.random.Generator, int], Rows], groups: int = 2) -> list[homophily.PeerData]:
    """24 peers, the first half of them in group 0 and the others in the last; ``draw`` makes a peer's x and y."""
    chance, data = np.random.default_rng(1), []
    for peer in range(PEERS):
        x, y = draw(chance, peer * groups // PEERS)
        data.append(homophily.PeerData(x=x, y=y))
    return data


def found(model: nn.Module, data: list[homophily.PeerData], normalise: str | None = None) -> Discovery:
    config = {} if normalise is None else {"data": {"normalise": normalise}}
    return homophily.kin(config, model=model, data=data)


def test_tables_with_missing_values() -> None:
    """A tenth of the values is missing, and a feature means different things in two groups of hospitals."""

    def draw(chance: np.random.Generator, group: int) -> Rows:
        x = chance.normal(size=(SAMPLES, 5)) * [1, 10, 100, 1, 1] + [0, 5, -300, 0, 0]
        y = (x[:, 0] > 0) if group == 0 else (x[:, 1] > 5)
        x[chance.random(x.shape) < 0.1] = np.nan
        return x, y.astype(int)

    answer = found(nn.Linear(5, 2), peers(draw), normalise="standard")
    assert answer.families == TWO
    assert answer.left_out == []
    same = found(nn.Linear(5, 2), peers(lambda chance, group: draw(chance, 0)), normalise="standard")
    assert same.summary()["rank"] == 0


@pytest.mark.parametrize("differ", [True, False])
def test_texts_of_two_markov_chains(differ: bool) -> None:
    """Both chains have every token as often, so that only the order of tokens shows the difference."""
    forward = np.roll(np.eye(8), 1, axis=1) * 0.7 + 0.3 / 8
    chains = [forward, forward.T if differ else forward]

    def draw(chance: np.random.Generator, group: int) -> Rows:
        x = np.empty((SAMPLES, 13), dtype=np.int64)
        x[:, 0] = chance.integers(8, size=SAMPLES)
        for place in range(1, 13):
            x[:, place] = [chance.choice(8, p=chains[group][token]) for token in x[:, place - 1]]
        return x[:, :-1], x[:, -1]  # the next token

    answer = found(BagOfTokens(8, 8), peers(draw))
    assert answer.families == (TWO if differ else [list(range(PEERS))])
    assert answer.conclusive is differ


@pytest.mark.parametrize("differ", [True, False])
def test_two_linear_concepts_of_numbers(differ: bool) -> None:
    """y = 50 + 20 x_1 or 50 + 20 x_2 plus noise, in a unit of which nobody is told."""

    def draw(chance: np.random.Generator, group: int) -> Rows:
        x = chance.normal(size=(SAMPLES, 4))
        return x, 50 + 20 * x[:, group * differ] + 5 * chance.normal(size=SAMPLES)

    answer = found(nn.Linear(4, 1), peers(draw))
    assert answer.families == (TWO if differ else [list(range(PEERS))])


def test_targets_that_differ_in_spread_only() -> None:
    """The square of a target shows what its value does not."""

    def draw(chance: np.random.Generator, group: int) -> Rows:
        return chance.normal(size=(SAMPLES, 4)), (1.0 + group) * chance.normal(size=SAMPLES)

    answer = found(nn.Linear(4, 1), peers(draw))
    assert answer.summary()["rank"] == 1
    place = answer.kinship.place[:, 0]
    narrow, wide = place[:12], place[12:]
    assert not bool(((narrow[:, None] - wide) * (narrow.mean() - wide.mean()) < 0).any())


@pytest.mark.parametrize("outputs", [3, 100])
def test_several_outputs(outputs: int) -> None:
    """Two groups whose outputs depend on the inputs by different matrices, also with more outputs than 64."""
    matrices = np.random.default_rng(2).normal(size=(2, 4, outputs)) / 2

    def draw(chance: np.random.Generator, group: int) -> Rows:
        x = chance.normal(size=(SAMPLES, 4))
        return x, 3.0 + x @ matrices[group] + chance.normal(size=(SAMPLES, outputs))

    assert found(nn.Linear(4, outputs), peers(draw)).families == TWO


def test_more_classes_than_128() -> None:
    """Two groups that number 200 classes differently."""
    centres, renamed = np.random.default_rng(2).normal(size=(200, 8)), np.random.default_rng(3).permutation(200)

    def draw(chance: np.random.Generator, group: int) -> Rows:
        y = chance.integers(200, size=2 * SAMPLES)
        x = centres[y] + 0.3 * chance.normal(size=(len(y), 8))
        return x, renamed[y] if group else y

    data = peers(draw)
    data[0].y[0] = 199  # so that the number of classes is certain
    assert found(nn.Linear(8, 200), data).families == TWO


def test_a_peer_with_one_wild_value_stays_with_its_group() -> None:
    def draw(chance: np.random.Generator, group: int) -> Rows:
        x = chance.normal(size=(SAMPLES, 4))
        return x, (x[:, group] > 0).astype(int)

    data = peers(draw)
    data[3].x[0, 2] = 1e9
    assert found(nn.Linear(4, 2), data).families == TWO


def test_three_groups_by_their_inputs_alone() -> None:
    """Labels are chance; inputs are centred elsewhere in each group."""

    def draw(chance: np.random.Generator, group: int) -> Rows:
        return chance.normal(size=(SAMPLES, 3)) + 1.5 * np.eye(3)[group], chance.integers(2, size=SAMPLES)

    thirds = [list(range(8)), list(range(8, 16)), list(range(16, 24))]
    assert found(nn.Linear(3, 2), peers(draw, groups=3)).families == thirds
