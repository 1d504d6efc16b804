"""The functions that users call (run, resume, compare, kin), and Simulation, which runs one round at a time."""

from homophily.experiments.audit import Audit, audit
from homophily.experiments.comparison import compare
from homophily.experiments.discovery import Discovery, kin
from homophily.experiments.simulate import Simulation, resume, run

__all__ = ["Audit", "Discovery", "Simulation", "audit", "compare", "kin", "resume", "run"]
