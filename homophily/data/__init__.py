"""Data sets, distribution shifts between clusters of peers, and the partition of data among peers.

Importing this package registers the bundled data sets and shifts.
"""

from homophily.data.constants import AgreedConstants, write_constants
from homophily.data.setup import PreparedData, prepared_data, sample_constants
from homophily.data.shifts import shifts
from homophily.data.sources import sources
from homophily.data.types import ClusterSpec, FederatedData, PartitionPlan, Samples, Source, Split
from homophily.data.user_data import PeerData

__all__ = [
    "AgreedConstants",
    "ClusterSpec",
    "FederatedData",
    "PartitionPlan",
    "PeerData",
    "PreparedData",
    "Samples",
    "Source",
    "Split",
    "prepared_data",
    "sample_constants",
    "shifts",
    "sources",
    "write_constants",
]
