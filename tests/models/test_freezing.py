"""Frozen layers: by name patterns or requires_grad, in evaluation mode, held once."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import homophily
from homophily.errors import UserError
from homophily.models.copying import copied, shallow
from homophily.models.freezing import freeze
from homophily.models.keyed_dropout import with_keyed_dropout


def network() -> nn.Sequential:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU())
    return nn.Sequential(body, nn.Linear(8, 10))


def config(**keys: object) -> dict[str, object]:
    return {"peers": 4, "rounds": 2, "method": {"name": "random", "k": 1}, "training": {"epochs": 1}, **keys}


def test_a_frozen_module_runs_in_evaluation_mode_with_everything_in_it() -> None:
    net = network()
    freeze(net, ["0"])
    ready = with_keyed_dropout(net).train()
    x = torch.randn(6, 1, 8, 8)
    assert torch.equal(ready(x), net.eval()(x))
    assert ready[1].training, "what is not frozen trains"
    assert torch.equal(ready[0][2].running_mean, network()[0][2].running_mean)
    assert [name for name, p in net.named_parameters() if p.requires_grad] == ["1.weight", "1.bias"]


def test_a_batchnorm_layer_frozen_by_flags_keeps_its_statistics_and_dropout_stays_on() -> None:
    net = network()
    net[0].requires_grad_(False)
    freeze(net, [])
    x = torch.randn(6, 1, 8, 8)
    assert not torch.equal(net.train()(x), net(x)), "dropout"
    assert torch.equal(net[0][2].running_mean, torch.zeros(8))
    other = network().train()
    freeze(other, [])
    other(x)
    assert not torch.equal(other[0][2].running_mean, torch.zeros(8)), "a trained layer updates its statistics"


def test_a_pattern_without_a_match_names_all_tensors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.frozen: no layer or buffer matches 'head'; the names are 1\.weight"):
        homophily.run(config(model={"frozen": ["head"]}), out=tmp_path / "run")


def test_a_network_without_trained_parameters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no parameter of the network receives a gradient"):
        homophily.run(config(model={"frozen": ["*"]}), out=tmp_path / "run")


@pytest.mark.parametrize("init", ["common", "independent"])
def test_bundled_networks_are_frozen_by_name(init: str, tmp_path: Path) -> None:
    runs = [
        homophily.run(config(model={"frozen": ["1"]}, engine=engine, init=init), out=tmp_path / engine)
        for engine in ("vectorised", "one-by-one")
    ]
    assert runs[0].about["layout"]["frozen"] == ["1.weight", "1.bias"]
    states = [runs[0].state_dict(peer) for peer in range(4)]
    assert all(torch.equal(state["1.weight"], states[0]["1.weight"]) for state in states)
    assert not torch.equal(states[0]["3.weight"], states[1]["3.weight"])
    for peer in range(4):
        other = runs[1].state_dict(peer)
        assert all(torch.allclose(states[peer][name], other[name], atol=1e-5) for name in other)


def test_given_networks_are_frozen_alike_by_name_and_by_flags(tmp_path: Path) -> None:
    by_name = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    by_flag = copied(by_name, share_frozen=False)
    by_flag[1].requires_grad_(False)
    first = homophily.run(config(model={"frozen": ["1"]}), model=by_name, out=tmp_path / "name")
    second = homophily.run(config(), model=by_flag, out=tmp_path / "flag")
    assert first.summary["accuracy"] == second.summary["accuracy"]
    assert first.about["frozen"] == second.about["frozen"] != ""
    assert by_name[1].weight.requires_grad, "the caller's module is unchanged"


def test_frozen_values_are_stored_once(tmp_path: Path) -> None:
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 4000), nn.ReLU(), nn.Linear(4000, 2), nn.Linear(2, 10))
    wide[1].requires_grad_(False)
    wide[3].requires_grad_(False)
    run = homophily.run(config(), model=wide, out=tmp_path / "run")
    frozen = 4 * sum(p.numel() for p in wide.parameters() if not p.requires_grad)
    assert sum(path.stat().st_size for path in run.path.rglob("*.safetensors")) < 1.1 * frozen
    assert torch.equal(run.model(0)[1].weight, wide[1].weight)
    more = homophily.resume(run.path, {"rounds": 3}, model=wide)
    assert more.about["frozen"] == run.about["frozen"]


def test_copies_share_the_memory_of_frozen_parameters_only_and_can_be_moved() -> None:
    net = network()
    net[0].requires_grad_(False)
    for clone in (shallow(net), copied(net)):
        assert clone[0][1].weight.data_ptr() == net[0][1].weight.data_ptr()
        assert clone[1].weight.data_ptr() != net[1].weight.data_ptr()
        clone.double()
        assert net[0][1].weight.dtype == torch.float32
    assert copied(net, share_frozen=False)[0][1].weight.data_ptr() != net[0][1].weight.data_ptr()


class Drifting(nn.Module):
    """A network that changes a frozen parameter in its forward pass, as momentum encoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.target = nn.Linear(64, 8).requires_grad_(False)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.target.weight.mul_(0.99)
        out: Tensor = self.head(self.target(x.flatten(1)))
        return out


def test_a_network_that_changes_frozen_parameters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"changes the frozen parameter 'target\.weight'"):
        homophily.run(config(), model=Drifting(), out=tmp_path / "run")
