"""A network as a row: parameters, then float buffers; other buffers are outside the row."""

import pytest
import torch
from torch import nn

from homophily.errors import UserError
from homophily.federation.layout import Layout
from homophily.models.keyed_dropout import with_keyed_dropout


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(2, 2)
        self.body = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
        self.head = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.head.weight
        self.register_buffer("mask", torch.full((2, 2), -torch.inf))
        self.register_buffer("cache", torch.ones(2), persistent=False)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tied(self.head(self.body(self.frozen(x))))


def test_trainable_parameters_come_first_then_unused_ones_then_float_buffers_and_frozen_ones_are_outside() -> None:
    layout = Layout.of(with_keyed_dropout(Net()), unused=["tied.bias"])
    names = [c.name for c in layout.columns]
    assert names == [
        "body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias", "head.weight", "head.bias",
        "tied.bias", "body.1.running_mean", "body.1.running_var",
    ]  # fmt: skip
    assert layout.frozen == ("frozen.weight", "frozen.bias")
    assert [c.trainable for c in layout.columns] == [True] * 6 + [False] * 3
    assert layout.trainable == 6 + 3 + 3 + 3 + 9 + 3
    assert set(layout.kept) == {"body.1.num_batches_tracked", "mask", "cache"}


def test_a_row_written_to_a_module_is_read_back() -> None:
    net = Net()
    layout = Layout.of(net)
    row, kept = layout.read(net)
    other = Net()
    other.frozen.load_state_dict(net.frozen.state_dict())  # the same for all peers
    layout.write(row, kept, other)
    x = torch.randn(4, 2)
    assert torch.equal(net.eval()(x), other.eval()(x))
    again, kept_again = layout.read(other)
    assert torch.equal(row, again)
    assert all(torch.equal(kept[name], kept_again[name]) for name in kept)
    place, tables = torch.zeros(2, layout.width), {name: torch.zeros_like(value) for name, value in kept.items()}
    layout.read_into(place[1], tables, other)
    assert torch.equal(place[1], row)
    assert not place[0].any()
    assert all(torch.equal(kept[name], tables[name]) for name in kept)


def test_the_state_dict_of_a_row_loads_strictly_with_tied_weights_under_both_names() -> None:
    net = Net()
    layout = Layout.from_json(Layout.of(net).to_json())
    named = layout.state_dict(*layout.read(net), layout.frozen_values(net))
    assert set(named) == set(net.state_dict())
    other = Net()
    other.load_state_dict(named)
    assert torch.equal(other.tied.weight, net.head.weight)


def frozen_norm() -> nn.Sequential:
    """A frozen convolution and BatchNorm, a BatchNorm without parameters beside it, and a head."""
    body = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3, affine=False)).requires_grad_(False)
    return nn.Sequential(body, nn.Linear(3, 2), nn.BatchNorm1d(2))


def test_buffers_of_frozen_modules_are_frozen_unless_training_changes_them() -> None:
    net = frozen_norm()
    statistics = [f"0.{layer}.running_{of}" for layer in (1, 2) for of in ("mean", "var")]
    assert not set(statistics) & set(Layout.of(net).frozen), "nobody said that they do not change"
    assert set(statistics) <= set(Layout.of(net, changing=[]).frozen)
    assert "2.running_mean" not in Layout.of(net, changing=[]).frozen, "its module is trained"
    assert not set(statistics) & set(Layout.of(net, changing=statistics).frozen)


def test_the_hash_of_frozen_tensors_depends_on_values_and_names() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    for net in (first, second):
        net.weight.requires_grad_(False)
    layout = Layout.of(first)
    assert layout.frozen_hash(first) == layout.frozen_hash(first) != layout.frozen_hash(second)
    with torch.no_grad():
        first.bias.fill_(7)
    assert layout.frozen_hash(first) == Layout.of(first).frozen_hash(first), "the bias is trained"
    assert Layout.of(nn.Linear(2, 2)).frozen_hash(nn.Linear(2, 2)) == ""


def test_views_share_the_rows_memory() -> None:
    layout = Layout.of(nn.Linear(2, 3))
    rows = torch.arange(18.0).view(2, 9)
    views = layout.views(rows)
    assert views["weight"].shape == (2, 3, 2)
    views["bias"][1] = -1
    assert rows[1].tolist() == [9, 10, 11, 12, 13, 14, -1, -1, -1]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("head", {"head.weight", "head.bias"}),
        ("head.*", {"head.weight", "head.bias"}),
        ("*.bias", {"body.0.bias", "body.1.bias", "head.bias", "tied.bias"}),
        ("frozen", set()),
        ("body.1", {"body.1.weight", "body.1.bias", "body.1.running_mean", "body.1.running_var"}),
        ("running_*", {"body.1.running_mean", "body.1.running_var"}),
    ],
)
def test_personal_patterns_name_tensors_or_the_modules_above_them(pattern: str, expected: set[str]) -> None:
    layout = Layout.of(Net(), [pattern])
    assert {c.name for c in layout.columns if c.personal} == expected
    assert layout.sent_parameters == layout.width - sum(c.stop - c.start for c in layout.columns if c.personal)


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(UserError, match=r"model\.personal.*'bn\*'"):
        Layout.of(Net(), ["bn*"])


@pytest.mark.parametrize("patterns", [["*"], ["body.0", "*.weight", "*.bias"]])
def test_patterns_that_match_all_trained_parameters_are_refused(patterns: list[str]) -> None:
    with pytest.raises(UserError, match=r"model\.personal: .* match all trained .* nothing is left to merge"):
        Layout.of(Net(), patterns)


def test_trained_parameters_are_those_that_get_a_gradient() -> None:
    net = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    assert Layout.of(net, ["used"]).has_personal
    with pytest.raises(UserError, match="match all trained parameters"):
        Layout.of(net, ["used"], unused=["unused.weight", "unused.bias"])
    net["used"].requires_grad_(False)
    assert not Layout.of(net, ["used"]).has_personal


def test_networks_without_parameters_or_of_mixed_precision_are_refused() -> None:
    with pytest.raises(UserError, match="no parameters"):
        Layout.of(nn.ReLU())
    with pytest.raises(UserError, match="the same dtype"):
        Layout.of(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double()))


def test_buffers_that_cannot_be_stored_are_refused() -> None:
    net = nn.Linear(1, 1)
    net.register_buffer("angles", torch.zeros(3, dtype=torch.complex64), persistent=False)
    assert Layout.of(net).kept == ("angles",)
    net.angles = net.angles.to(torch.complex128)
    with pytest.raises(UserError, match=r"angles has the type torch\.complex128, which a run folder cannot store"):
        Layout.of(net)
