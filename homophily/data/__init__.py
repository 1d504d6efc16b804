"""Data sets, distribution shifts between clusters of peers, and the partition of data among peers.

Importing this package registers the bundled data sets and shifts.
"""

from homophily.data.constants import AgreedConstants, write_constants
from homophily.data.datasets import from_dataset, from_datasets
from homophily.data.padding import padded
from homophily.data.peer_data import PeerData
from homophily.data.setup import PreparedData, prepared_data, sample_constants
from homophily.data.shifts import shifts
from homophily.data.sources import sources
from homophily.data.tables import from_csv, from_frame, from_parquet
from homophily.data.transforms import Draws, crop, flip
from homophily.data.types import ClusterSpec, FederatedData, PartitionPlan, Samples, Source, Split

__all__ = [
    "AgreedConstants",
    "ClusterSpec",
    "Draws",
    "FederatedData",
    "PartitionPlan",
    "PeerData",
    "PreparedData",
    "Samples",
    "Source",
    "Split",
    "crop",
    "flip",
    "from_csv",
    "from_dataset",
    "from_datasets",
    "from_frame",
    "from_parquet",
    "padded",
    "prepared_data",
    "sample_constants",
    "shifts",
    "sources",
    "write_constants",
]
