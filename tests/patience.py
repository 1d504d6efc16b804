"""How long tests wait for what other processes and threads do."""

PATIENCE = 240.0  # seconds; only what hangs, or a very busy machine, comes to an end by it
