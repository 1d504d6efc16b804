"""Flower's client, in a separate module because Ray's actors import it."""

from __future__ import annotations

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional as F

from side_by_side.job import Job
from side_by_side.networks import network


@cache
def held(job: Job) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """The network and all peers' data, loaded once per actor."""
    torch.set_num_threads(job.threads)
    return network(job.network), job.data()


def client(job: Job) -> ClientApp:
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        module, (all_x, all_y) = held(job)
        peer = int(context.node_config["partition-id"])
        x, y = all_x[peer], all_y[peer]
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(module.parameters(), job.lr, job.momentum)
        for _ in range(job.epochs):
            for batch in torch.randperm(len(x)).split(job.batch):
                optimiser.zero_grad()
                F.cross_entropy(module(x[batch]), y[batch]).backward()
                optimiser.step()
        content = {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": len(x) * job.epochs}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app
