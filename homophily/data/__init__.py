"""Data: sources, shifts, and the split into peers."""

from homophily.data.setup import Ready, ready
from homophily.data.shifts import shifts
from homophily.data.sources import sources
from homophily.data.types import Kind, Plan, Samples, Shares, Source, Split
from homophily.data.user_data import PeerArrays

__all__ = ["Kind", "PeerArrays", "Plan", "Ready", "Samples", "Shares", "Source", "Split", "ready", "shifts", "sources"]
