"""Methods decide which peers to ask for models and to merge with. Importing this package registers the bundled ones."""

from homophily.federation.view import View
from homophily.methods import baselines, dac, dpg, kin, panm, pens, server
from homophily.methods.base import Findings, Memory, Method, RoundContext, methods

__all__ = [
    "Findings",
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
