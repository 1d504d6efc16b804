"""Personalised peer-to-peer federated learning: peers find those whose data is like theirs, and learn with them."""

from homophily import power as power
from homophily.acquaint import Acquaintance, kin
from homophily.api import resume, run
from homophily.comparison import Comparison, compare
from homophily.config import Config
from homophily.data.own import PeerArrays as PeerData
from homophily.data.types import Kind, Plan, Samples, Source
from homophily.errors import DivergedWarning, UnsuitableError, UserError
from homophily.methods import Method, Now, View
from homophily.randomness import Purpose
from homophily.runs import Run
from homophily.version import __version__ as __version__

__all__ = [
    "Acquaintance", "Comparison", "Config", "DivergedWarning", "Kind", "Method", "Now", "PeerData", "Plan", "Purpose",
    "Run", "Samples", "Source", "UnsuitableError", "UserError", "View", "compare", "kin", "power", "resume", "run",
]  # fmt: skip
