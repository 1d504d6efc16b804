"""Real peers: the round loop of the simulator with a network where the other rows were."""
