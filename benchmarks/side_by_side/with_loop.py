"""A tuned plain PyTorch loop: one peer after the other, in one process or in several that split the peers."""

from __future__ import annotations

import time
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F

from side_by_side.job import Job, Repeat
from side_by_side.networks import network


def work(rank: int, job: Job, rows: Tensor, barrier: Barrier) -> None:
    """Execute the rounds of every ``processes``-th peer. rows: [peers, D], in shared memory; rank 0 measures time."""
    torch.set_num_threads(job.threads)
    x, y = job.data()
    mine = torch.arange(rank, len(x), job.processes)
    trainer = Trainer(job)
    repeats = []
    for round in range(job.warmup + job.repeats):
        barrier.wait()
        began = time.perf_counter()
        for peer in mine.tolist():
            trainer.train(rows[peer], x[peer], y[peer])
        barrier.wait()  # all models are trained before any is merged
        trained = time.perf_counter()
        partners = (mine[:, None] + torch.randint(1, len(x), (len(mine), job.merged))) % len(x)
        merged = (rows[mine] + rows[partners].sum(1)) / (job.merged + 1)
        barrier.wait()  # all models are read before any is overwritten
        rows[mine] = merged
        barrier.wait()
        if round >= job.warmup:
            samples = y.numel() * job.epochs
            repeats.append(Repeat(samples, time.perf_counter() - began, trained - began))
    if rank == 0:
        job.answer(repeats, ["torch"])


class Trainer:
    """One module whose parameters are views of the peer's row, so that nothing is copied."""

    def __init__(self, job: Job) -> None:
        self.job, self.module = job, network(job.network)
        self.parameters = list(self.module.parameters())
        self.optimiser = torch.optim.SGD(self.parameters, job.lr, job.momentum, fused=True)

    def train(self, row: Tensor, x: Tensor, y: Tensor) -> None:
        at = 0
        for parameter in self.parameters:
            parameter.data = row[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        self.optimiser.state.clear()  # same as a new optimiser every round
        for _ in range(self.job.epochs):
            for batch in torch.randperm(len(x)).split(self.job.batch):
                self.optimiser.zero_grad(set_to_none=True)
                F.cross_entropy(self.module(x[batch]), y[batch]).backward()
                self.optimiser.step()


def main() -> None:
    job = Job.asked()
    start = torch.cat([p.detach().flatten() for p in network(job.network).parameters()])
    rows = start.repeat(len(job.data()[0]), 1).share_memory_()
    barrier = get_context("spawn").Barrier(job.processes)
    if job.processes == 1:
        work(0, job, rows, barrier)
    else:
        spawn(work, (job, rows, barrier), nprocs=job.processes)


if __name__ == "__main__":
    main()
