"""Real peers: the round loop of the simulator, with the network as the source of models."""

from homophily.peer.process import Peer

__all__ = ["Peer"]
