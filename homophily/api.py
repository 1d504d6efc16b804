"""The verbs that users call: run, resume, compare and kin, and a simulation that is played step by step."""

from homophily.experiments.comparison import Comparison, compare
from homophily.experiments.discovery import Discovery, kin
from homophily.experiments.simulate import Simulation, resume, run

__all__ = ["Comparison", "Discovery", "Simulation", "compare", "kin", "resume", "run"]
