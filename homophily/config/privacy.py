"""The table [privacy] of a config: what is promised about everything that a peer releases."""

from __future__ import annotations

from typing import Literal

import pydantic
from pydantic import Field

from homophily.config.table import Table

_PEER = (
    "must be 'sample' or 'person': a peer sends its own model, so one vector depends on the whole peer, and noise that "
    "hides a whole peer leaves nothing of it"
)


class Privacy(Table):
    """Differential privacy: one promise (epsilon, delta) for everything that a peer releases."""

    epsilon: float = Field(
        gt=0,
        le=1000,
        allow_inf_nan=False,
        description="the promise of each peer, for its fingerprints and all its models together; smaller is more "
        "private",
    )
    delta: float = Field(
        1e-5,
        ge=1e-9,
        lt=0.1,
        description="the probability with which the promise may fail; below 1 / samples of every peer",
    )
    unit: Literal["sample", "person", "peer"] = Field(
        "sample",
        description='what is protected: adding or removing one `"sample"`, or all samples of one `"person"`, who has '
        'at most `samples_per_person`. `"peer"` is refused',
    )
    samples_per_person: int | None = Field(
        None, ge=1, le=1000, description='the most samples that one person has at a peer; needed for unit `"person"`'
    )
    samples: int | None = Field(
        None,
        ge=1,
        le=10**9,
        description="training samples per peer that the noise and the sampling rate follow from, agreed by all peers. "
        "Left out: the number of samples that each peer has, which then counts as public",
    )
    clip: float = Field(  # squares of gradients that are not scaled down must not vanish in float32
        1.0, ge=1e-12, le=1e30, allow_inf_nan=False, description="the largest norm of the gradient of one sample"
    )
    share: float = Field(
        0.5, gt=0, lt=1, description="the share of epsilon that fingerprints alone may cost, if the method has them"
    )
    max_noise: float = Field(
        30.0,
        gt=0,
        allow_inf_nan=False,
        description="the largest noise on a sum of gradients (as a multiple of `clip`) or on a fingerprint (as a "
        "multiple of what one sample contributes); a promise that needs more is refused before anything is released",
    )

    @pydantic.field_validator("unit")
    @classmethod
    def _no_peer(cls, unit: str) -> str:
        if unit == "peer":
            raise ValueError(_PEER)
        return unit

    @pydantic.model_validator(mode="after")
    def _fits(self) -> Privacy:
        if (self.unit == "person") != (self.samples_per_person is not None):
            raise ValueError("samples_per_person goes with unit = 'person', which needs it")
        return self

    @property
    def group(self) -> int:
        """The most samples of one protected unit."""
        return self.samples_per_person or 1
