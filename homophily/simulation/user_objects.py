"""Objects that a Python caller passes in place of names in the config, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from homophily.data import PeerData
from homophily.data.transforms import Transform
from homophily.errors import UserError
from homophily.methods import Method
from homophily.methods.server import ServerMethod
from homophily.models.copying import copied
from homophily.simulation.shards import Shards
from homophily.training.losses import Loss
from homophily.training.score_metrics import PeerMetric


@dataclass(frozen=True)
class UserObjects:
    """Objects that a Python caller passes in place of names in the config."""

    model: nn.Module | None = None
    data: Sequence[PeerData] | None = None
    loss: Loss | None = None
    method: Method | ServerMethod | None = None
    extra_metrics: Mapping[str, PeerMetric] = field(default_factory=dict)
    transform: Transform | Sequence[Transform] | None = None

    def __post_init__(self) -> None:
        if self.model is not None and not isinstance(self.model, nn.Module):
            wanted = "model=: must be one nn.Module, from which every peer starts"
            raise UserError(_other(wanted, self.model, "model.name"))
        if self.loss is not None and not callable(self.loss):
            raise UserError(_other("loss=: must be a function of (outputs, targets)", self.loss, "training.loss"))
        if self.method is not None and not isinstance(self.method, Method | ServerMethod):
            raise UserError(_other("method=: must be a homophily.Method object", self.method, "method.name"))
        if not isinstance(self.extra_metrics, Mapping):
            raise UserError("extra_metrics=: must be functions by name")
        for one in self.transforms:
            if not callable(one):
                raise UserError(_other("transform=: must be a function of (x, draws)", one, "data.transform"))

    @property
    def transforms(self) -> Sequence[Transform]:
        """The transforms in order; () if none was passed."""
        given = () if self.transform is None else self.transform
        return given if isinstance(given, list | tuple) else (given,)

    def agreed(self, shards: Shards) -> UserObjects:
        """These objects, with the weights that the model has in process 0: each process may have drawn its own."""
        if self.model is None or shards.size == 1:
            return self
        own = {name: value for name, value in self.model.state_dict().items() if isinstance(value, Tensor)}
        model = copied(self.model, share_frozen=False)
        model.load_state_dict(shards.handed_out(lambda rank: own), strict=False)
        return replace(self, model=model)


def _other(wanted: str, given: object, key: str) -> str:
    """An error message: what was ``wanted``, what was ``given``, and what to do if that is a name or a class."""
    if isinstance(given, str):
        return f"{wanted}, not {given!r}; a name goes into the config as {key}"
    if isinstance(given, type):
        return f"{wanted}, not the class {given.__name__}; call it to make one"
    return f"{wanted}, not {type(given).__name__}"
