"""Experiment trackers. Importing this package registers the bundled ones."""

from homophily.trackers import mlflow, tables, tensorboard, wandb
from homophily.trackers.base import TrackedRun, Tracker, trackers

__all__ = ["TrackedRun", "Tracker", "mlflow", "tables", "tensorboard", "trackers", "wandb"]
