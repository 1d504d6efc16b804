"""The papers' tables and figures: a recipe for each, with the printed values and claims, and what plays them."""
