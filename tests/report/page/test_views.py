"""The data of the figures is that of the folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import homophily
from homophily import Run, UserError
from homophily.atomic_io import locked, read_json, write_json
from homophily.report.page.document import views_of
from homophily.report.page.figures import (
    Absent,
    Graph,
    Histogram,
    Intervals,
    Lines,
    Matrix,
    Points,
    Table,
    View,
)
from homophily.runs.comparison import Comparison
from homophily.runs.history import HistoryWriter
from tests.report.page.folders import HOSTILE, regression
from tests.report.page.views import figure


@pytest.fixture(scope="module")
def panm(folders: Path) -> View:
    return views_of([folders / "panm"])[0]


@pytest.fixture(scope="module")
def comparison(folders: Path) -> View:
    return views_of([folders / "compare"])[0]


# A run


def test_epsilon_spent_and_promised_are_shown_of_a_run_and_of_a_peer(tmp_path: Path) -> None:
    config = {
        "peers": 4, "rounds": 2, "data": {"train": 40, "test": 10}, "method": "random", "training": {"batch": 10},
        "privacy": {"epsilon": 8.0},
    }  # fmt: skip
    simulation = homophily.Simulation(config, out=tmp_path / "run")
    simulation.step()
    simulation.save()
    (half,) = views_of([tmp_path / "run"])
    spent = Run(tmp_path / "run").metrics()[-1]["epsilon_spent"]
    assert dict(half.facts)["epsilon spent"] == f"{spent:.3g} of 8"
    run = homophily.resume(tmp_path / "run")
    (whole,) = views_of([run.path])
    assert dict(whole.facts)["epsilon spent"] == f"{run.summary['privacy']['epsilon_spent']:.3g} of 8"
    write_json(run.path / "status.json", {"peer": "a", "privacy": {"epsilon_spent": 1.5}})
    (peer,) = views_of([run.path])
    assert dict(peer.facts)["epsilon spent"] == "1.5 of 8"
    assert "epsilon spent" not in dict(views_of([_without_privacy(tmp_path)])[0].facts)


def _without_privacy(folder: Path) -> Path:
    return homophily.run({"peers": 4, "rounds": 1, "method": "local", "data": {"test": 10}}, out=folder / "plain").path


def test_scores_by_round_are_those_of_the_metrics(panm: View, folders: Path) -> None:
    shown, metrics = figure(panm, "by-round"), Run(folders / "panm").metrics()
    assert isinstance(shown, Lines)
    assert list(shown.series[0].x) == [1, 2, 3, 4, 5, 6]
    assert list(shown.series[0].y) == [line["accuracy"] for line in metrics]
    assert [one.name for one in shown.series[1:]] == ["median of peers", "cluster <0>", "cluster <1>"]
    assert list(shown.series[3].y) == [line["accuracy_by_cluster"]["cluster <1>"] for line in metrics]
    peers = Run(folders / "panm").history.scores["accuracy"]
    band = shown.series[1]
    assert (band.low, band.high) == tuple(pytest.approx(np.quantile(peers, q, axis=1).tolist()) for q in (0.1, 0.9))


def test_the_score_is_shown_against_the_bytes_that_were_sent(panm: View, folders: Path) -> None:
    shown, run = figure(panm, "by-cost"), Run(folders / "panm")
    assert shown.x_label == "MB sent per peer"
    assert shown.series[0].x[-1] == pytest.approx(run.summary["bytes_sent_per_peer"] / 1e6)


def test_the_spread_has_every_peer_from_the_worst_to_the_best(panm: View, folders: Path) -> None:
    shown, scores = figure(panm, "spread"), Run(folders / "panm").scores["accuracy"]
    assert isinstance(shown, Points)
    assert shown.y.tolist() == sorted(scores)
    assert [scores[peer] for peer in shown.peers] == sorted(scores)
    assert f"worst tenth (1 peer): {min(scores):.1f}; of the best tenth: {max(scores):.1f}" in shown.text


def test_a_stopped_run_shows_its_last_round(folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "panm", tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    HistoryWriter(tmp_path / "run/history").cut(4)
    (view,) = views_of([tmp_path / "run"])
    last, facts = Run(tmp_path / "run").metrics()[-1], dict(view.facts)
    assert facts["same-cluster merges"] == f"{100 * last['same_cluster_merges']:.0f}%"
    assert facts["MB sent per peer"] == f"{last['bytes_sent_per_peer'] / 1e6:.3g}"
    assert "The last recorded score of each peer (round 4)" in figure(view, "spread").text


def test_the_matrix_holds_all_merges_in_the_order_of_clusters(panm: View, folders: Path) -> None:
    shown, merges = figure(panm, "matrix"), Run(folders / "panm").merges()
    assert isinstance(shown, Matrix)
    assert list(shown.frames.rounds) == [1, 2, 3, 4, 5, 6]
    assert shown.peers.tolist() == [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]
    assert shown.groups == [("cluster <0>", 6), ("cluster <1>", 6)]
    total = np.zeros(144)
    for cells, counts in zip(shown.frames.cells, shown.frames.counts, strict=True):
        total[cells] += counts
    assert (total.reshape(12, 12) == merges[np.ix_(shown.peers, shown.peers)]).all()
    assert isinstance(figure(panm, "graph"), Graph)


def test_theorem_1_is_drawn_for_the_first_stage_of_panm(panm: View, folders: Path) -> None:
    shown = figure(panm, "neighbours")
    by_name = {one.name: one for one in shown.series}
    stage = by_name["Theorem 1: all 2 in the cluster"]
    assert list(stage.x) == [1, 2]  # a third of six rounds
    # Four of eleven are drawn, of which five are of the own cluster: 1 - (C(6,4) + 5 C(6,3)) / C(11,4)
    assert stage.y[0] == pytest.approx(1 - (15 + 5 * 20) / 330)
    assert by_name["Theorem 1: precision"].y[0] == pytest.approx((1 - 15 / 330 + stage.y[0]) / 2)
    counted = by_name["counted: all 2 in the cluster"]
    assert list(counted.x) == [1, 2]
    assert counted.y == pytest.approx(_all_in_the_cluster(folders / "panm", 2))


def _all_in_the_cluster(folder: Path, k: int) -> list[float]:
    """The share of the twelve peers that merged with k peers of their own cluster, in the first two rounds."""
    history = Run(folder).history
    found = []
    for round in (1, 2):
        same = [
            [peer % 2 == other % 2 for peer, other in history.merges(round).tolist() if peer == i] for i in range(12)
        ]
        found.append(sum(all(one) and len(one) == k for one in same) / 12)
    return found


def test_similarities_are_shown_for_each_watched_peer_and_round(panm: View, folders: Path) -> None:
    shown = figure(panm, "similarities")
    assert isinstance(shown, Histogram)
    assert next(iter(shown.measured)) == HOSTILE
    stored = Run(folders / "panm").history.similarities(0)
    assert [one.round for one in shown.measured[HOSTILE]] == [one.round for one in stored]
    assert shown.measured[HOSTILE][0].values.tolist() == stored[0].values.tolist()


def test_the_two_gaussians_are_those_of_the_em(panm: View, folders: Path) -> None:
    fits = [one for one in Run(folders / "panm").history.diagnostics if "sigma" in one.watched]
    assert [one.round for one in fits] == [4, 6]
    measured = {one.round: one for one in figure(panm, "similarities").measured[HOSTILE]}
    assert measured[1].groups == []
    for fit in fits:
        found = measured[fit.round]
        upper = {name: mean for name, mean, _, _ in found.groups}.get("own cluster (upper group)")
        assert upper == pytest.approx(float(fit.watched["mean"][0, 0]), rel=1e-6)
        assert sum(size for _, _, _, size in found.groups) == len(found.values)


def test_settings_have_versions_and_the_command_that_runs_it_again(comparison: View, folders: Path) -> None:
    view = views_of([folders / "compare/random-1"])[0]
    commands = dict(figure(view, "again").rows)
    assert commands["again"] == f"homophily run {folders}/compare/random-1/config.toml"
    assert ["torch", Run(view.name).about["versions"]["torch"]] in figure(view, "versions").rows
    assert ["seed", "1"] in figure(view, "config").rows


def test_objects_given_in_python_cannot_be_run_again_from_the_command_line(panm: View) -> None:
    assert "in Python" in dict(figure(panm, "again").rows)["again"]


def test_figures_without_data_say_why(folders: Path) -> None:
    view = views_of([folders / "compare/local-0"])[0]
    for id, why in {
        "matrix": "no peer has merged",
        "neighbours": "does not look for",
        "similarities": "measured no",
    }.items():
        absent = figure(view, id)
        assert isinstance(absent, Absent)
        assert why in absent.text


def test_without_a_record_the_matrix_has_the_merges_of_the_whole_run(here: Path) -> None:
    config = {"peers": 8, "rounds": 3, "record": False, "method": "random"}
    merges = homophily.run(config, out="bare", device="cpu").merges()
    (view,) = views_of([Path("bare")])
    shown = figure(view, "matrix")
    assert list(shown.frames.rounds) == [3]
    assert "over all rounds" in shown.text
    assert shown.frames.counts[0].sum() == merges.sum()


# kin


@pytest.fixture(scope="module")
def kin(tmp_path_factory: pytest.TempPathFactory) -> View:
    path = tmp_path_factory.mktemp("kin") / "run"
    homophily.run({"peers": 20, "rounds": 2, "data": {"train": 60}}, out=path, device="cpu")
    return views_of([path])[0]


def test_families_are_counted_by_cluster(kin: View) -> None:
    table, found = figure(kin, "families"), Run(kin.name).history.diagnostics[0]
    assert table.headings == ["family", "peers", "0°", "90°", "180°", "270°"]
    assert sum(int(row[1]) for row in table.rows) == 20
    sizes = np.bincount(found.peers["family"]).tolist()
    assert [int(row[1]) for row in table.rows] == sizes


def test_places_have_the_colour_of_the_family_and_the_shape_of_the_cluster(kin: View) -> None:
    shown, found = figure(kin, "places"), Run(kin.name).history.diagnostics[0]
    assert (shown.colour == found.peers["family"]).all()
    assert shown.mark is not None
    assert [shown.marks[mark] for mark in shown.mark] == Run(kin.name).scores["cluster"]


def test_the_spectrum_has_its_noise_edge(kin: View) -> None:
    shown, found = figure(kin, "spectrum"), Run(kin.name).history.diagnostics[0]
    assert shown.threshold == pytest.approx(float(found.values["edge"][0]))
    assert sum(value > shown.threshold for value in shown.values) == int(found.values["rank"][0])


# A run that has not finished


def test_a_stopped_run_is_shown_as_far_as_it_went(folders: Path, tmp_path: Path) -> None:
    stopped = _stopped(folders / "panm", tmp_path / "stopped", rounds=4)
    (view,) = views_of([stopped])
    assert view.state == "stopped"
    assert ("progress", "round 4 of 6") in view.facts
    assert list(figure(view, "by-round").series[0].x) == [1, 2, 3, 4]
    assert "last recorded score" in figure(view, "spread").text
    assert view.peers[0] == HOSTILE
    assert figure(view, "matrix").groups == [("cluster <0>", 6), ("cluster <1>", 6)]


def test_a_run_in_progress_is_shown_as_running(folders: Path, tmp_path: Path) -> None:
    with locked(_stopped(folders / "panm", tmp_path / "running", rounds=1)):
        assert views_of([tmp_path / "running"])[0].state == "running"


def test_a_run_before_its_first_round_has_no_scores_yet(folders: Path, tmp_path: Path) -> None:
    (view,) = views_of([_stopped(folders / "panm", tmp_path / "fresh", rounds=0)])
    assert figure(view, "by-round").text == "no round has been scored"
    assert "no scores of single peers" in figure(view, "spread").text
    assert ("progress", "round 0 of 6") in view.facts


def _stopped(run: Path, target: Path, rounds: int) -> Path:
    """A copy of a run as it was after some rounds."""
    shutil.copytree(run, target)
    for name in ("summary.json", "scores.json", "merges.safetensors", "models.safetensors"):
        (target / name).unlink()
    if rounds:
        HistoryWriter(target / "history").cut(rounds)
    else:
        shutil.rmtree(target / "history")
    lines = (target / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (target / "metrics.jsonl").write_text("".join(lines[:rounds]) + '{"round": 9, "accu', encoding="utf-8")
    return target


# A comparison


def test_the_table_of_methods_has_means_and_intervals_over_seeds(comparison: View, folders: Path) -> None:
    table, stored = figure(comparison, "methods"), read_json(folders / "compare/compare.json")
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["local", "random", "oracle"]
    for name, score, seeds, *_ in table.rows:
        cell = stored[name]["accuracy"]
        assert score == f"{cell['mean']:.1f} ± {2.776445 * cell['std'] / 5**0.5:.2f}"
        assert seeds == "5"
    assert isinstance(figure(comparison, "intervals"), Intervals)


def test_every_pair_of_methods_is_tested_over_seeds(comparison: View) -> None:
    tests = figure(comparison, "tests")
    assert [row[0] for row in tests.rows] == ["local − random", "local − oracle", "random − oracle"]
    assert {row[3] for row in tests.rows} == {"5"}
    assert "Holm" in tests.text
    assert "Peers are never used as samples" in tests.text


def test_curves_are_means_over_seeds(comparison: View, folders: Path) -> None:
    shown = figure(comparison, "by-round")
    runs = Comparison(folders / "compare").runs["oracle"]
    last = [run.metrics()[-1]["accuracy"] for run in runs]
    oracle = next(one for one in shown.series if one.name == "oracle")
    assert oracle.y[-1] == pytest.approx(np.mean(last))
    assert oracle.low is not None
    assert oracle.low[-1] < oracle.y[-1]


def test_four_seeds_are_too_few_for_a_test(here: Path) -> None:
    tiny = {"peers": 4, "rounds": 1, "data": {"test": 10}}
    homophily.compare(tiny, methods=["local", "random"], seeds=range(2), out="few", device="cpu")
    (view,) = views_of([Path("few")])
    assert figure(view, "tests").text.endswith("there are 2")
    assert figure(view, "clusters").rows[0][0] == "local"


def test_a_comparison_that_was_stopped_is_shown_with_the_runs_that_it_has(folders: Path, tmp_path: Path) -> None:
    target = tmp_path / "compare"
    shutil.copytree(folders / "compare", target)
    shutil.rmtree(target / "oracle-4")
    (target / "oracle-3/summary.json").unlink()
    (target / "compare.json").unlink()
    (view,) = views_of([target])
    assert view.state == "stopped"
    assert ("runs finished", "13 of 14") in view.facts
    assert {row[0]: row[2] for row in figure(view, "methods").rows} == {"local": "5", "random": "5", "oracle": "3"}
    assert [row[0] for row in figure(view, "tests").rows] == ["local − random"]


def test_a_sweep_ends_in_a_figure_of_the_score_against_the_key(here: Path) -> None:
    tiny = {"peers": 6, "rounds": 2, "data": {"test": 10, "angles": [0, 90]}}
    sweep = {"method.k": [1, 2], "training.optimizer": ["sgd", "adam"]}
    homophily.compare(tiny, methods=["random", "local"], seeds=[0, 1], sweep=sweep, out="sweep", device="cpu")
    (view,) = views_of([Path("sweep")])
    shown, rows = figure(view, "sweep-method-k"), Comparison("sweep").table()
    lines = {one.name: one for one in shown.series}
    found = lines["random optimizer=adam"]
    means = [rows[f"random k={k} optimizer=adam"]["accuracy"]["mean"] for k in (1, 2)]
    assert (list(found.x), list(found.y)) == ([1, 2], pytest.approx(means))
    alone = lines["local optimizer=adam"]  # has no k
    assert (list(alone.x), alone.dashed, alone.y[0]) == ([1, 2], True, alone.y[1])
    assert figure(view, "sweep-training-optimizer").x_names == ["adam", "sgd"]
    assert ("methods", "2") in view.facts


def test_several_runs_are_also_shown_side_by_side(folders: Path) -> None:
    views = views_of([folders / "compare/random-0", folders / "compare/random-1", folders / "compare/oracle-0"])
    assert views[0].name == "side by side"
    assert [row[0] for row in figure(views[0], "methods").rows] == ["random", "oracle"]
    assert len(views) == 4


def test_a_regression_is_judged_by_its_error(tmp_path: Path) -> None:
    (view,) = views_of([regression(tmp_path / "mse")])
    assert figure(view, "by-round").y_label == "mean squared error"
    values = figure(view, "spread").y.tolist()
    assert values == sorted(values, reverse=True)  # the worst peer has the largest error


def test_a_run_with_another_headline_is_shown_with_its_name(folders: Path, tmp_path: Path) -> None:
    shown = figure(views_of([folders / "compare/oracle-0", regression(tmp_path / "mse")])[0], "intervals")
    assert (list(shown.names), shown.missing) == (["oracle", "random"], ["", "scored by mse"])


# Mistakes


def test_a_folder_that_is_nothing_of_this_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no config.toml \(a run or a peer\) and no comparison.json"):
        views_of([tmp_path])
    with pytest.raises(UserError, match="is not a folder"):
        views_of([tmp_path / "missing"])


def test_damaged_metrics_are_refused(folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "panm", tmp_path / "run")
    (tmp_path / "run/metrics.jsonl").write_text("{broken\n")
    with pytest.raises(UserError, match=r"run/metrics.jsonl is damaged"):
        views_of([tmp_path / "run"])
