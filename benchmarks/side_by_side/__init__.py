"""The parts of side_by_side.py: one script per framework, which runs in that framework's virtual environment."""
