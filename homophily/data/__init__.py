"""Data: sources, shifts, and the split into peers."""

from homophily.data.own import PeerArrays
from homophily.data.prepare import Ready, ready
from homophily.data.shifts import shifts
from homophily.data.sources import sources
from homophily.data.types import Kind, Plan, Samples, Shares, Source, Split

__all__ = ["Kind", "PeerArrays", "Plan", "Ready", "Samples", "Shares", "Source", "Split", "ready", "shifts", "sources"]
