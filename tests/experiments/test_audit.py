"""Audits of runs: correct mechanisms pass, broken ones are caught, and releases without noise are found out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import homophily
from homophily.errors import UserError
from homophily.experiments.canaries import copies, in_private_fingerprints, joined
from homophily.experiments.runner import as_config
from homophily.privacy.accountant import epsilon_of
from homophily.privacy.draws import KeyedDraws
from homophily.privacy.gaussian import gaussian_noise
from homophily.privacy.guesses import Guesses
from homophily.privacy.loss_distribution import Release
from homophily.simulation.setup import prepare
from homophily.simulation.user_objects import UserObjects

SMALL = {
    "peers": 4, "rounds": 3, "data": {"train": 40, "test": 20}, "method": "random",
    "training": {"batch": 10, "epochs": 1}, "model": {"hidden": [8]},
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("here")


def _audit(canaries: int = 600, privacy: dict[str, Any] | None = None, **keys: Any) -> homophily.Audit:
    asked = {**SMALL, **keys, **({"privacy": {"epsilon": 2.0, **privacy}} if privacy is not None else {})}
    homophily.run(asked, out="run")
    return homophily.audit("run", canaries=canaries)


def test_private_training_passes(here: Path) -> None:
    found = _audit(privacy={})
    (models,) = found.attacks
    assert found.passed
    assert (models.what, models.releases, models.guesses) == ("models", 12, 600)
    assert 0.2 < models.epsilon_lower < models.epsilon_account <= 2.0
    stored = json.loads((here / "run" / "audit.json").read_text())
    assert stored["passed"] is True
    assert stored["attacks"][0]["epsilon_lower"] == models.epsilon_lower


def test_too_little_noise_in_training_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = KeyedDraws.normal
    monkeypatch.setattr(KeyedDraws, "normal", lambda self, *keys: 0.5 * right(self, *keys))
    found = _audit(privacy={})
    assert not found.passed
    assert found.attacks[0].epsilon_lower > 2.0


def test_gradients_that_are_not_clipped_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def unclipped(gradients: Tensor, mask: Tensor, clip: float) -> Tensor:
        return (gradients * mask[:, None]).sum(0)

    monkeypatch.setattr("homophily.training.vectorised.clipped_sum", unclipped)
    assert not _audit(privacy={}).passed


def test_persons_with_several_samples_are_canaries_with_as_many() -> None:
    found = _audit(privacy={"unit": "person", "samples_per_person": 3})
    assert found.passed
    assert found.unit == "person"
    assert found.attacks[0].epsilon_lower > 0.1


def test_without_privacy_canaries_are_found() -> None:
    found = _audit(200, method="kin", rounds=10)
    assert found.passed is None
    prints, models = found.attacks
    assert prints.correct == prints.guesses == 100
    assert models.correct > 85
    assert prints.epsilon_lower > models.epsilon_lower > 1.0
    assert prints.epsilon_account is None


def test_private_kin_passes_with_fingerprints_and_models() -> None:
    found = _audit(method="kin", privacy={"epsilon": 8.0})
    assert [attack.what for attack in found.attacks] == ["fingerprints", "models"]
    assert found.passed
    prints, models = found.attacks
    assert prints.epsilon_account == pytest.approx(4.0, rel=0.01)  # privacy.share
    assert models.epsilon_account is not None
    assert 0.5 < prints.epsilon_lower < 4.0 < models.epsilon_account < 8.0


def _fingerprints(noise: float, group: int = 1) -> Guesses:
    experiment, _, _ = prepare(as_config(SMALL), UserObjects(), torch.device("cpu"))
    some = copies(experiment.task, torch.arange(4), 500, 7, group)
    scores = joined([in_private_fingerprints(part, 0, noise, 1) for part in some])
    return Guesses.of(scores.score, scores.inside, 0.5)


@pytest.mark.parametrize("group", [1, 3])
def test_private_fingerprints_pass_and_half_of_their_noise_is_caught(group: int) -> None:
    noise = group * gaussian_noise(4.0, 1e-5)
    release = [Release(noise, group=group)]
    account = epsilon_of(release, 1e-5)
    assert 0.3 * account < _fingerprints(noise, group).epsilon_of_gaussian(release, 1e-5) <= account
    assert _fingerprints(noise / 2, group).epsilon_of_gaussian(release, 1e-5) > account


def test_bad_requests_are_refused() -> None:
    with pytest.raises(UserError, match="is not a run"):
        homophily.audit("nowhere")
    homophily.run({**SMALL, "rounds": 1}, out="run")
    with pytest.raises(UserError, match="canaries = 10: must be at least 50"):
        homophily.audit("run", canaries=10)
    federation = {key: value for key, value in SMALL.items() if key != "method"}
    homophily.compare({**federation, "rounds": 1}, methods=["local"], out="several")
    with pytest.raises(UserError, match=r"several is a comparison: name one of its runs, such as several/local-\d"):
        homophily.audit("several")
    with pytest.raises(UserError, match="steps = 0"):
        homophily.audit("run", steps=0)
