"""Who meets whom and who merges. Importing this registers the bundled methods."""

from homophily.federation.view import View
from homophily.methods import baselines, dac, dpg, kin, panm, pens, server
from homophily.methods.base import Memory, Method, Now, methods

__all__ = ["Memory", "Method", "Now", "View", "baselines", "dac", "dpg", "kin", "methods", "panm", "pens", "server"]
