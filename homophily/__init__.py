"""Personalised peer-to-peer federated learning: peers find those whose data is like theirs, and learn with them."""

from homophily.config.schema import Config
from homophily.data.types import Kind, Plan, Samples, Source
from homophily.data.user_data import PeerArrays as PeerData
from homophily.errors import DivergedWarning, UnsuitableError, UserError
from homophily.experiments.comparison import Comparison, compare
from homophily.experiments.discovery import Acquaintance, kin
from homophily.experiments.runner import resume, run
from homophily.methods import Method, Now, View
from homophily.methods.kin import power
from homophily.randomness import Purpose
from homophily.runs.reader import Run
from homophily.version import __version__ as __version__

__all__ = [
    "Acquaintance", "Comparison", "Config", "DivergedWarning", "Kind", "Method", "Now", "PeerData", "Plan", "Purpose",
    "Run", "Samples", "Source", "UnsuitableError", "UserError", "View", "compare", "kin", "power", "resume", "run",
]  # fmt: skip
