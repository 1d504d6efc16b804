"""gossipy: plain push gossip, or PENS in its first stage. Training is counted and timed in the handler."""

from __future__ import annotations

import sys
import time
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional as F

from side_by_side.job import Job, Repeat
from side_by_side.networks import network

sys.modules["torchvision"] = ModuleType("torchvision")  # imported without being declared; only its downloads use it

from gossipy.core import AntiEntropyProtocol, StaticP2PNetwork  # noqa: E402
from gossipy.data import DataDispatcher  # noqa: E402
from gossipy.data.handler import ClassificationDataHandler  # noqa: E402
from gossipy.model import TorchModel  # noqa: E402
from gossipy.model.handler import TorchModelHandler  # noqa: E402
from gossipy.node import GossipNode, PENSNode  # noqa: E402
from gossipy.simul import GossipSimulator  # noqa: E402

TICKS = 10  # per round: few, because each tick polls every node


class Net(TorchModel):  # type: ignore[misc]
    def __init__(self, name: str) -> None:
        super().__init__()
        self.layers = network(name)

    def init_weights(self) -> None:
        """Do nothing: the layers already have their initial weights."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class Handler(TorchModelHandler):  # type: ignore[misc]
    """gossipy's handler, which also counts samples and seconds over all nodes."""

    samples, seconds = 0, 0.0

    def _update(self, data: tuple[Tensor, Tensor]) -> None:
        began = time.perf_counter()
        super()._update(data)
        Handler.seconds += time.perf_counter() - began
        Handler.samples += len(data[0]) * self.local_epochs


def simulator(job: Job) -> GossipSimulator:
    x, y = job.data()
    peers, samples = y.shape
    dispatcher = DataDispatcher(
        ClassificationDataHandler(x.flatten(0, 1), y.flatten(), test_size=0), peers, False, auto_assign=False
    )
    dispatcher.set_assignments([list(range(i * samples, (i + 1) * samples)) for i in range(peers)], None)
    optimiser = {"lr": job.lr, "momentum": job.momentum}
    handler = Handler(Net(job.network), torch.optim.SGD, optimiser, F.cross_entropy, job.epochs, job.batch)
    kind, keys = GossipNode, {}
    if job.task == "pens":
        kind, keys = PENSNode, {"n_sampled": job.tried, "m_top": job.kept, "step1_rounds": 1_000_000}
    nodes = kind.generate(dispatcher, StaticP2PNetwork(peers), handler, TICKS, True, **keys)
    made = GossipSimulator(nodes, dispatcher, TICKS, AntiEntropyProtocol.PUSH)
    made.init_nodes()
    return made


def main() -> None:
    job = Job.asked()
    torch.set_num_threads(job.threads)
    simulation = simulator(job)
    rounds = job.tried if job.task == "pens" else 1  # a PENS node trains after it has received this many models
    repeats = []
    for repeat in range(job.warmup + job.repeats):
        Handler.samples, Handler.seconds = 0, 0.0
        began = time.perf_counter()
        simulation.start(rounds)
        if repeat >= job.warmup:
            repeats.append(Repeat(Handler.samples, time.perf_counter() - began, Handler.seconds))
    job.answer(repeats, ["gossipy-dfl", "torch"])


if __name__ == "__main__":
    main()
