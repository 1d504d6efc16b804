"""Personalised peer-to-peer federated learning: peers find the peers with similar data and merge models with them.

Public names are imported on first use, so that reading a run folder does not load the simulator.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from homophily.version import __version__ as __version__

if TYPE_CHECKING:
    from homophily import data
    from homophily.api import Audit, Discovery, Simulation, audit, compare, kin, resume, run
    from homophily.config.schema import Config
    from homophily.data import ClusterSpec, PartitionPlan, PeerData, Samples, Source
    from homophily.errors import ConfigWarning, DivergedWarning, TrackerWarning, UnsuitableError, UserError
    from homophily.experiments.callbacks import Callback
    from homophily.methods import Method, RoundContext, View
    from homophily.methods.kin import power
    from homophily.randomness import Purpose
    from homophily.runs.comparison import Comparison
    from homophily.runs.reader import Run
    from homophily.trackers import TrackedRun, Tracker
    from homophily.training.objectives import Objective, Phase

__all__ = [
    "Audit", "Callback", "ClusterSpec", "Comparison", "Config", "ConfigWarning", "Discovery", "DivergedWarning",
    "Method", "Objective", "PartitionPlan", "PeerData", "Phase", "Purpose", "RoundContext", "Run", "Samples",
    "Simulation", "Source", "TrackedRun", "Tracker", "TrackerWarning", "UnsuitableError", "UserError", "View", "audit",
    "compare", "data", "kin", "power", "resume", "run",
]  # fmt: skip

_MODULES = {
    "homophily.api": ("Audit", "Discovery", "Simulation", "audit", "compare", "kin", "resume", "run"),
    "homophily.config.schema": ("Config",),
    "homophily.data": ("ClusterSpec", "PartitionPlan", "PeerData", "Samples", "Source"),
    "homophily.errors": ("ConfigWarning", "DivergedWarning", "TrackerWarning", "UnsuitableError", "UserError"),
    "homophily.experiments.callbacks": ("Callback",),
    "homophily.methods": ("Method", "RoundContext", "View"),
    "homophily.methods.kin": ("power",),
    "homophily.randomness": ("Purpose",),
    "homophily.runs.comparison": ("Comparison",),
    "homophily.runs.reader": ("Run",),
    "homophily.trackers": ("TrackedRun", "Tracker"),
    "homophily.training.objectives": ("Objective", "Phase"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "data":
        return import_module("homophily.data")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'homophily' has no attribute {name!r}")
    module = import_module(_MODULE_OF[name])
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
