"""A simulation on several processes, which may be on several machines: torch.distributed, started by torchrun."""
