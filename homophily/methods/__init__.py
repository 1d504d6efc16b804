"""Who meets whom and who merges. Importing this registers the bundled methods."""

from homophily.methods import baselines
from homophily.methods.base import Memory, Method, Now, View, methods

__all__ = ["Memory", "Method", "Now", "View", "baselines", "methods"]
