"""kin: know who is like you before the first round, from fingerprints compared once."""

from homophily.methods.kin import power
from homophily.methods.kin.method import Kin

__all__ = ["Kin", "power"]
