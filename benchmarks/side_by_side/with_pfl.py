"""pfl: FedAvg over all users. Started by torchrun if there are several processes."""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F

from side_by_side.job import Job, Repeat
from side_by_side.networks import network


class Net(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.layers = network(name)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(self.loss(x, y).item() * len(x), len(x))}


class Model(PyTorchModel):  # type: ignore[misc]
    """pfl's model, which also records the seconds of all users' local training."""

    seconds = 0.0

    def do_multiple_epochs_of(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        out = super().do_multiple_epochs_of(*args, **kwargs)
        Model.seconds += time.perf_counter() - began
        return out


class Times(TrainingProcessCallback):  # type: ignore[misc]
    """Records the end time of each round, and the seconds of training until then."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []

    def after_central_iteration(self, metrics: Metrics, model: Any, *, central_iteration: int) -> tuple[bool, Metrics]:
        self.ends.append((time.perf_counter(), Model.seconds))
        return False, Metrics()


def main() -> None:
    job = Job.asked()
    torch.set_num_threads(job.threads)
    x, y = job.data()
    peers = len(x)
    net = Net(job.network)
    model = Model(
        net, partial(torch.optim.SGD, momentum=job.momentum), central_optimizer=torch.optim.SGD(net.parameters(), lr=1)
    )
    users = {i: Dataset((x[i], y[i])) for i in range(peers)}  # created once, because a Dataset caches its batches
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    rounds, times = job.warmup + job.repeats, Times()
    FederatedAveraging().run(
        # Evaluates in the first round, which is not timed.
        algorithm_params=NNAlgorithmParams(rounds, rounds, peers, None),
        backend=SimulatedBackend(data, data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=job.batch, local_num_epochs=job.epochs, local_learning_rate=job.lr
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[times],
    )
    samples = y.numel() * job.epochs
    repeats = [
        Repeat(samples, end[0] - began[0], end[1] - began[1] if job.processes == 1 else None)
        for began, end in pairwise(times.ends[job.warmup - 1 :])
    ]
    if get_framework_module().distributed.global_rank == 0:
        job.answer(repeats, ["pfl", "torch"])


if __name__ == "__main__":
    main()
