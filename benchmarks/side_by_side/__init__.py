"""The parts of side_by_side.py: one script for each framework, run in that framework's own environment."""
