"""The traits of a network are found by running it."""

import math
import re

import pytest
import torch
from torch import Tensor, nn

from homophily.data.task_kinds import CLASSIFICATION, MULTI_LABEL, REGRESSION, TOKENS
from homophily.errors import UserError
from homophily.models.keyed_dropout import with_keyed_dropout
from homophily.training.losses import Loss, binary_cross_entropy, cross_entropy, mse
from homophily.training.probe import ModuleTraits, probe
from tests.training.nets import Drawing, Everything


def traits(net: nn.Module, *inputs: int) -> ModuleTraits:
    x, y = torch.randn(9, *inputs), torch.randint(3, (9,))
    return probe(with_keyed_dropout(net), cross_entropy, x, y)


class Centring(nn.Module):
    """Couples samples in training mode without a BatchNorm layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - x.mean(0) if self.training else x)


class Counting(nn.Module):
    """Replaces its buffer by a new tensor, which torch.vmap does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + x.detach().sum(0)
        return self.layer(x)


class SamplesSecond(nn.Module):
    """Dropout on a tensor whose first axis is not the samples: padding would move the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.layer = nn.Dropout(0.5), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.drop(x.transpose(0, 1)).transpose(0, 1))


class Branching(nn.Module):
    """Branches on its values, which torch.vmap cannot do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.spare = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if float(x.sum()) < 1e9 else self.spare(x)


def test_plain_layers_are_uncoupled_and_vectorise() -> None:
    found = traits(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(0.5), nn.Linear(8, 3)), 4)
    assert found.obstacle is None
    assert not found.coupled
    assert not found.draws
    assert found.saved_bytes > 0


@pytest.mark.parametrize(("net", "inputs"), [(Everything(3), (1, 8, 8)), (Centring(), (4,)), (SamplesSecond(), (4,))])
def test_coupling_is_found(net: nn.Module, inputs: tuple[int, ...]) -> None:
    found = traits(net, *inputs)
    assert found.coupled
    assert found.obstacle is None


def test_random_draws_of_the_network_are_found() -> None:
    found = traits(Drawing(), 1, 8, 8)
    assert found.draws
    assert found.obstacle is not None
    assert "random" in found.obstacle


def test_without_vmap_no_parameter_counts_as_unused() -> None:
    found = traits(Branching(), 4)
    assert found.obstacle is not None
    assert "vmap" in found.obstacle
    assert found.unused == set(), "other samples may take the other branch"


def test_parameters_that_never_get_a_gradient_are_found() -> None:
    net = nn.Linear(4, 3)
    net.spare = nn.Linear(4, 3)
    assert traits(net, 4).unused == {"spare.weight", "spare.bias"}


def test_buffers_that_training_changes_are_found() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    net.register_buffer("scale", torch.ones(3))
    assert traits(net, 4).changing == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_the_error_of_a_failing_network_names_the_input_shape() -> None:
    with pytest.raises(UserError, match=r"fails on a batch of shape \[4, 7\]"):
        traits(nn.Linear(4, 3), 7)


def test_integer_inputs_for_a_float_layer_are_explained() -> None:
    x, y = torch.randint(5, (9, 4)), torch.randint(3, (9,))
    says = r"shape \[4, 4\], which count as tokens \(indices for an embedding\).*PeerData\(x\.astype\(.float32.\), y\)"
    for net in (nn.Linear(4, 3), nn.Linear(4, 3).double(), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))):
        with pytest.raises(UserError, match=says) as refused:
            probe(net, cross_entropy, x, y)
        assert "mat1" not in str(refused.value)
    with pytest.raises(
        UserError, match=r"fails on a batch of shape \[4, 4\] \(torch\.int64\): index out of range"
    ) as refused:
        probe(nn.Sequential(nn.Embedding(2, 3), nn.Flatten(), nn.Linear(12, 3)), cross_entropy, x + 2, y)
    assert "float32" not in str(refused.value)  # it does take integers, and floats would not help


def test_a_loss_must_be_per_sample() -> None:
    with pytest.raises(UserError, match=r"training\.loss.*one loss per sample"):
        probe(
            nn.Linear(4, 3),
            lambda out, y: nn.functional.cross_entropy(out, y),
            torch.randn(4, 4),
            torch.zeros(4).long(),
        )


class Turning(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1j


def test_complex_numbers_are_refused() -> None:
    for net in (Turning(4, 3), nn.Linear(4, 3, dtype=torch.complex64)):
        with pytest.raises(UserError, match="model: the network's parameters and outputs must be real numbers"):
            probe(net, cross_entropy, torch.randn(4, 4, dtype=net.weight.dtype), torch.zeros(4).long())
    with pytest.raises(UserError, match=r"training\.loss: must return real numbers, not torch\.complex64"):
        probe(nn.Linear(4, 3), lambda out, y: out.sum(1) * 1j, torch.randn(4, 4), torch.zeros(4).long())


def test_a_network_without_gradient_is_refused() -> None:
    net = nn.Linear(4, 3).requires_grad_(False)
    with pytest.raises(UserError, match="no parameter"):
        traits(net, 4)


def test_buffers_that_are_replaced_are_an_obstacle() -> None:
    found = traits(Counting(), 4)
    assert found.obstacle is not None
    assert "buffers" in found.obstacle


@pytest.mark.parametrize("samples", [1, 2, 8])
def test_coupling_is_found_with_any_number_of_samples(samples: int) -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    x, y = torch.randn(samples, 4), torch.randn(samples, 3)
    assert probe(network, mse, x, y).coupled
    assert not probe(network[0], mse, x, y).coupled


def test_coupling_in_evaluation_mode_is_refused() -> None:
    with pytest.raises(UserError, match="in evaluation mode"):
        traits(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)), 4)


def test_the_error_of_a_failing_loss_names_the_shapes() -> None:
    with pytest.raises(UserError, match=r"training\.loss: fails on outputs \[4, 3\] and targets \[4\]: no such loss"):
        probe(nn.Linear(4, 3), failing, torch.randn(4, 4), torch.zeros(4).long())


def failing(outputs: Tensor, targets: Tensor) -> Tensor:
    raise ArithmeticError("no such loss")


def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.flatten(1)[:, :1] - targets.flatten(1)[:, :1]).abs().mean(1)


@pytest.mark.parametrize("loss", [mse, absolute])
@pytest.mark.parametrize(("outputs", "targets"), [((2,), (3,)), ((8,), (1,)), ((5, 2), (1,)), ((5,), (5, 2))])
def test_float_targets_need_one_output_each_for_any_loss(
    loss: Loss, outputs: tuple[int, ...], targets: tuple[int, ...]
) -> None:
    net = nn.Sequential(nn.Linear(4, math.prod(outputs)), nn.Unflatten(1, outputs))
    says = f"one output per target, not outputs {[4, *outputs]} and targets {[4, *targets]}"
    with pytest.raises(UserError, match=re.escape(says)):
        probe(net, loss, torch.randn(4, 4), torch.randn(4, *targets), kind=REGRESSION)


@pytest.mark.parametrize("loss", [mse, absolute])
@pytest.mark.parametrize(("outputs", "targets"), [((6,), (3, 2)), ((3, 2), (6,)), ((1, 1), (1,))])
def test_float_targets_may_have_another_shape_than_the_outputs(
    loss: Loss, outputs: tuple[int, ...], targets: tuple[int, ...]
) -> None:
    net = nn.Sequential(nn.Linear(4, math.prod(outputs)), nn.Unflatten(1, outputs))
    assert not probe(net, loss, torch.randn(4, 4), torch.randn(4, *targets), kind=REGRESSION).coupled


@pytest.mark.parametrize("outputs", [(), (5, 2)])
def test_classes_need_one_score_per_class_for_any_loss(outputs: tuple[int, ...]) -> None:
    layer: nn.Module = nn.Unflatten(1, outputs) if outputs else nn.Flatten(0)
    net = nn.Sequential(nn.Linear(4, math.prod(outputs)), layer)
    with pytest.raises(
        UserError, match=r"model: accuracy needs outputs \[4, classes\], not outputs \[4.*targets \[4\]"
    ):
        probe(net, absolute, torch.randn(4, 4), torch.zeros(4).long(), kind=CLASSIFICATION)


def tokens(outputs: tuple[int, ...]) -> None:
    net = nn.Sequential(nn.Linear(4, math.prod(outputs)), nn.Unflatten(1, outputs))
    probe(net, cross_entropy, torch.randn(4, 4), torch.zeros(4, 3).long(), kind=TOKENS)


def test_classes_of_positions_need_classes_before_positions() -> None:
    tokens((7, 3))
    wanted = "model: accuracy needs outputs [4, classes, 3], not outputs"
    with pytest.raises(UserError, match=re.escape(f"{wanted} [4, 3, 7] and targets [4, 3]; transpose(1, 2)")):
        tokens((3, 7))
    with pytest.raises(UserError, match=re.escape(f"{wanted} [4, 3] and targets [4, 3]; if y has a 0 or 1")):
        tokens((3,))


def test_labels_need_one_output_each() -> None:
    y = torch.zeros(4, 3)
    assert not probe(nn.Linear(4, 3), binary_cross_entropy, torch.randn(4, 4), y, kind=MULTI_LABEL).coupled
    with pytest.raises(UserError, match=r"a multi-label task needs one output per label, not outputs \[4, 2\]"):
        probe(nn.Linear(4, 2), binary_cross_entropy, torch.randn(4, 4), y, kind=MULTI_LABEL)


def test_outputs_may_have_any_shape_if_no_kind_asks_for_one() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2)))
    assert not probe(net, absolute, torch.randn(4, 4), torch.randn(4, 9)).coupled


# Networks with state in attributes


class Remembering(nn.Module):
    """Subtracts a running mean of its training inputs, stored in a plain attribute or a buffer."""

    def __init__(self, registered: bool, learns: bool = True, looks: bool = True) -> None:
        super().__init__()
        self.layer, self.learns, self.looks = nn.Linear(4, 3), learns, looks
        self.register_buffer("seen", torch.zeros(4)) if registered else setattr(self, "seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.learns:
            self.seen = 0.9 * self.seen + 0.1 * x.detach().mean(0)
        return self.layer(x - self.seen if self.looks else x)


class Cached(nn.Module):
    """Computes a function of its weights once and stores it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.doubled: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.doubled is None:
            self.doubled = 2 * self.layer.weight.detach()
        return self.layer(x) + x @ self.doubled.T


class Stepping(nn.Linear):
    """Stores a number of earlier calls."""

    steps = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1.0
        return super().forward(x) * self.steps


@pytest.mark.parametrize(
    ("net", "named"), [(Remembering(False), "(seen) "), (Cached(), "(doubled) "), (Stepping(4, 3), "")]
)
def test_a_network_with_state_in_an_attribute_is_refused(net: nn.Module, named: str) -> None:
    says = f"its outputs depend on earlier batches, stored in an attribute {named}that is neither"
    with pytest.raises(UserError, match=re.escape(says)):
        traits(net, 4)


@pytest.mark.parametrize(
    "net", [Remembering(True), Remembering(False, learns=False), Remembering(False, looks=False), nn.BatchNorm1d(4)]
)
def test_buffers_constants_and_unused_attributes_are_accepted(net: nn.Module) -> None:
    traits(nn.Sequential(net, nn.Linear(4 if isinstance(net, nn.BatchNorm1d) else 3, 3)), 4)


class OnlyTraining(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            raise ValueError("it was to be trained only")
        return super().forward(x)


class TwoThings(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out if self.training else (out, x)


class OfFour(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.zeros(4, 3)


def test_a_network_that_fails_in_evaluation_or_on_other_batches_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"in evaluation mode the network fails on a batch .* it was to be trained only"
    ):
        traits(OnlyTraining(4, 3), 4)
    with pytest.raises(UserError, match=r"in evaluation mode the network must return shape \[4, 3\], as in training"):
        traits(TwoThings(4, 3), 4)
    with pytest.raises(UserError, match=r"the network fails on a batch of shape \[2, 4\]"):
        traits(OfFour(4, 3), 4)


def test_classes_given_as_floats_are_explained() -> None:
    y = torch.tensor([[0.0], [1.0], [1.0], [0.0]])
    with pytest.raises(UserError, match=r"y has floats, as for regression; if they are classes, use integers"):
        probe(nn.Linear(4, 2), mse, torch.randn(4, 4), y, kind=REGRESSION)


def test_rounding_in_a_deep_network_does_not_prevent_vectorising() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(30) for layer in (nn.Linear(16, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU())]
    assert traits(nn.Sequential(nn.Linear(4, 16), *layers, nn.Linear(16, 3)), 4).obstacle is None


class Averaged(nn.Linear):
    """Fails on a single sample."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0 * x[1].sum()


def test_a_network_that_fails_on_one_sample_is_refused() -> None:
    with pytest.raises(UserError, match="in evaluation mode the network fails on one sample: index 1 is out of bounds"):
        traits(Averaged(4, 3), 4)
