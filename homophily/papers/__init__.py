"""Reproduction of the papers' tables and figures: a recipe for each, with the paper's values and claims."""
