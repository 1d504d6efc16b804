"""The functions that users call (run, resume, compare, kin), and Simulation, which runs one round at a time."""

from homophily.experiments.comparison import Comparison, compare
from homophily.experiments.discovery import Discovery, kin
from homophily.experiments.simulate import Simulation, resume, run

__all__ = ["Comparison", "Discovery", "Simulation", "compare", "kin", "resume", "run"]
