"""Generates the pages and drawings under docs/ that follow from the code: ``python -m docs.generate``."""
