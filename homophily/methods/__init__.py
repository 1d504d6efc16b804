"""Methods: who asks whom for a model, and who merges with whom. Importing this registers the bundled methods."""

from homophily.federation.view import View
from homophily.methods import baselines, dac, dpg, kin, panm, pens, server
from homophily.methods.base import Memory, Method, RoundContext, methods

__all__ = [
    "Memory",
    "Method",
    "RoundContext",
    "View",
    "baselines",
    "dac",
    "dpg",
    "kin",
    "methods",
    "panm",
    "pens",
    "server",
]
