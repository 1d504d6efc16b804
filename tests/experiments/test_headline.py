"""The headline metric leads a run's results; it is that of the task, another registered one, or a user's function."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import homophily
from homophily.data.task_kinds import IGNORED
from homophily.experiments.runner import as_config
from homophily.report import console
from homophily.report.comparison_table import comparison
from homophily.simulation.setup import prepare
from homophily.simulation.user_objects import UserObjects
from tests.experiments.tasks import made

SMALL: dict[str, Any] = {"peers": 4, "rounds": 2, "method": "local", "data": {"train": 20, "test": 30}}
LOCAL: dict[str, Any] = {"rounds": 2, "method": "local", "training": {"lr": 0.3}}
F1 = "torchmetrics.functional.classification:multiclass_f1_score"


def run(keys: dict[str, Any], out: Path, **objects: Any) -> homophily.Run:
    return homophily.run(keys, out=out, **objects)


def test_a_named_metric_takes_the_place_of_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run({**SMALL, "headline": "f1"}, tmp_path / "run")
    summary = found.summary
    assert summary["headline"] == "f1"
    assert {"f1", "f1_over_clusters", "f1_by_cluster", "loss"} <= set(summary)
    assert not any(key.startswith("accuracy") for key in summary)
    assert np.mean(found.scores["f1"]) == pytest.approx(summary["f1"])
    assert found.metrics()[-1]["headline"] == "f1"
    assert (found.headline.name, found.headline.better, found.headline.percent) == ("f1", "higher", True)
    assert (found.config.headline.name, found.config.headline.better) == ("f1", "higher")
    console.summary(found)
    assert "F1, %" in capsys.readouterr().out


def test_the_default_is_written_into_the_config(tmp_path: Path) -> None:
    found = run(SMALL, tmp_path / "run")
    assert found.config.headline.model_dump() == {"name": "accuracy", "better": "higher"}
    again = homophily.run(tmp_path / "run" / "config.toml", out=tmp_path / "again")
    assert again.summary["accuracy"] == found.summary["accuracy"]


def test_registered_metrics_can_stand_beside_the_headline(tmp_path: Path) -> None:
    keys = {**SMALL, "headline": "perplexity", "extra_metrics": ["accuracy", "f1"]}
    found, plain = run(keys, tmp_path / "run"), run(SMALL, tmp_path / "plain")
    assert found.scores["accuracy"] == plain.scores["accuracy"]
    assert np.log(found.scores["perplexity"]) == pytest.approx(plain.scores["loss"], rel=1e-5)
    assert found.headline.better == "lower"


def test_a_function_of_torchmetrics_gets_what_it_asks_for(tmp_path: Path) -> None:
    from torchmetrics.functional.classification import multiclass_f1_score

    model, data = made("tagging")
    keys = {**LOCAL, "headline": {"name": F1, "better": "higher", "average": "weighted"}, "data": {"test": 20}}
    found = run(keys, tmp_path / "run", model=model, data=data)
    assert found.summary["headline"] == "multiclass_f1_score"
    experiment, _, _ = prepare(as_config(keys), UserObjects(made("tagging")[0], data), torch.device("cpu"))
    x, y = experiment.task.data.test.peer(2)
    with torch.no_grad():
        outputs = found.model(2)(x)
    expected = multiclass_f1_score(outputs, y, 3, average="weighted", ignore_index=IGNORED)
    assert found.scores["multiclass_f1_score"][2] == pytest.approx(float(expected), rel=1e-5)


def test_labels_are_whole_numbers_for_a_users_metric(tmp_path: Path) -> None:
    model, data = made("multi-label")
    name = "torchmetrics.functional.classification:multilabel_accuracy"
    found = run({**LOCAL, "headline": {"name": name, "better": "higher"}}, tmp_path / "run", model=model, data=data)
    assert 0.5 < found.summary["multilabel_accuracy"] <= 1.0


def worst_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().max()


def test_a_function_given_in_python_can_be_the_headline(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = [homophily.PeerData(x, x[:, :2]) for x in rng.normal(size=(3, 40, 4)).astype(np.float32)]
    keys = {**LOCAL, "training": {"lr": 0.1}, "headline": {"name": "worst_error", "better": "lower"}}
    model = torch.nn.Linear(4, 2)
    found = run(keys, tmp_path / "run", model=model, data=data, extra_metrics={"worst_error": worst_error})
    assert list(found.summary["worst_error_by_cluster"]) == ["all"]
    assert "mse" not in found.summary
    longer = homophily.resume(
        tmp_path / "run", {"rounds": 3}, model=model, data=data, extra_metrics={"worst_error": worst_error}
    )
    assert longer.summary["rounds"] == 3
    assert longer.summary["worst_error"] == pytest.approx(np.mean(longer.scores["worst_error"]))


def pairs_of_outputs(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.flatten(1).sum(1).sub(targets.flatten(1).sum(1)).square()


def test_outputs_may_have_any_shape_if_loss_and_headline_are_the_users(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = [homophily.PeerData(x, x[:, :3]) for x in rng.normal(size=(3, 30, 4)).astype(np.float32)]
    model = torch.nn.Sequential(torch.nn.Linear(4, 10), torch.nn.Unflatten(1, (5, 2)))
    found = run({**LOCAL, "headline": "loss"}, tmp_path / "run", model=model, data=data, loss=pairs_of_outputs)
    assert found.summary["loss_over_clusters"] == found.summary["loss"]
    assert found.summary["headline"] == "loss"


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"headline": "mse"}, "headline.name = 'mse': cannot score classification targets; these can: accuracy, auroc, f1"),
    ({"headline": "acuracy"}, "unknown headline metric 'acuracy' (did you mean 'accuracy'?)"),
    ({"headline": F1}, f"headline.name = '{F1}': set headline.better too, to 'higher' or 'lower'"),
    ({"headline": {"name": F1, "better": "up"}}, 'headline.better = "up": must be '),
    ({"headline": {"name": "f1", "better": "lower"}}, "headline.better = 'lower': higher is better for f1"),
    ({"headline": {"name": "f1", "average": "micro"}}, "unknown key headline.average"),
    ({"headline": {"name": F1, "better": "higher", "averag": "micro"}}, "unknown key headline.averag"),
    ({"headline": {"name": "math:pi", "better": "higher"}}, "headline metric 'math:pi' is not callable"),
    ({"headline": {"name": "builtins:len", "better": "higher"}}, "headline.name = 'builtins:len' must take"),
    ({"headline": "f1", "extra_metrics": ["f1"]}, "extra_metrics: 'f1' is a score that every run has"),
    ({"extra_metrics": ["mae"]}, "extra_metrics = 'mae': cannot score classification targets"),
    ({"extra_metrics": ["top"]}, "extra_metrics = 'top': must be package.module:name, or one of accuracy"),
]


@pytest.mark.parametrize(("keys", "message"), MISTAKES)
def test_a_mistake_is_named(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(homophily.UserError) as refused:
        run({**SMALL, **keys}, tmp_path / "run")
    assert str(refused.value).startswith(message)
    assert not (tmp_path / "run").exists()


def one_sided(peers: int = 4, validation: bool = False) -> list[homophily.PeerData]:
    """Two classes; the test (or validation) samples of peer 1 have only one of them."""
    rng, out = np.random.default_rng(0), []
    for i in range(peers):
        x = rng.normal(size=(40, 3))
        y = (x[:, 0] > 0).astype(int)
        held = (x[y == 1], y[y == 1]) if i == 1 else (x, y)
        parts = dict(zip(("validation_x", "validation_y"), held if validation else (x, y), strict=True))
        tests = dict(zip(("test_x", "test_y"), (x, y) if validation else held, strict=True))
        out.append(homophily.PeerData(x, y, cluster=i % 2, **parts, **tests))
    return out


def test_a_peer_without_a_defined_score_is_left_out_with_a_note(tmp_path: Path) -> None:
    found = run({**LOCAL, "headline": "auroc"}, tmp_path / "run", model=torch.nn.Linear(3, 2), data=one_sided())
    scores = found.scores["auroc"]
    assert scores[1] is None
    assert found.summary["auroc"] == pytest.approx(np.mean([scores[i] for i in (0, 2, 3)]))
    assert found.summary["auroc_by_cluster"] == pytest.approx({"0": np.mean([scores[0], scores[2]]), "1": scores[3]})
    assert "auroc is undefined for 1 of 4 peers (peer 1), and its mean leaves them out" in found.summary["notes"]
    assert found.summary["diverged"] == []


def test_early_stopping_can_watch_the_headline(tmp_path: Path) -> None:
    """Accuracy on few samples stands still while the loss falls, so peers stop earlier."""
    keys = {**SMALL, "rounds": 25, "data": {"train": 20, "test": 30, "validation": 10}}
    rounds = {}
    for on in ("loss", "headline"):
        training = {"patience": 3, "stop_on": on}
        rounds[on] = run({**keys, "training": training}, tmp_path / on).summary["rounds"]
    assert rounds["headline"] < rounds["loss"]


def test_early_stopping_keeps_the_model_with_the_best_headline(tmp_path: Path) -> None:
    keys = {**SMALL, "rounds": 12, "data": {"train": 20, "test": 30, "validation": 10}}
    config = as_config({**keys, "training": {"patience": 4, "stop_on": "headline"}})
    experiment, _, _ = prepare(config, UserObjects(), torch.device("cpu"))
    found = run(config.toml(), tmp_path / "run")
    x, y = experiment.task.data.validation.peer(1)  # type: ignore[union-attr]
    simulation = homophily.Simulation(config, out=tmp_path / "again")
    best = -1.0
    for _ in simulation:
        experiment.task.module.load_state_dict(simulation._active.state_dict(1))
        with torch.no_grad():
            best = max(best, float((experiment.task.module.eval()(x).argmax(1) == y).double().mean()))
    with torch.no_grad():
        kept = float((found.model(1)(x).argmax(1) == y).double().mean())
    assert kept == best


def test_early_stopping_by_an_undefined_headline_is_refused(tmp_path: Path) -> None:
    keys = {**LOCAL, "headline": "auroc", "training": {"patience": 2, "stop_on": "headline"}}
    with pytest.raises(homophily.UserError, match=r"training\.stop_on = 'headline': auroc is undefined .* of peer 1;"):
        run(keys, tmp_path / "run", model=torch.nn.Linear(3, 2), data=one_sided(validation=True))


def test_a_comparison_is_led_by_the_headline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = made("language")
    keys = {"rounds": 2, "headline": "perplexity", "training": {"lr": 0.3}}
    found = homophily.compare(keys, methods=["local", "random"], model=model, data=data, out=tmp_path / "both")
    table = found.table(fair=True)
    for name, runs in found.runs.items():
        assert table[name]["perplexity"] == {"mean": runs[0].summary["perplexity"]}
        assert table[name]["worst_tenth"]["mean"] == max(runs[0].scores["perplexity"])
    comparison(found)
    assert capsys.readouterr().out.startswith("perplexity, 1 seed")


def test_a_folder_of_an_older_version_has_accuracy_as_headline(tmp_path: Path) -> None:
    found = run(SMALL, tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    del about["headline"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    assert found.headline.name == "accuracy"
