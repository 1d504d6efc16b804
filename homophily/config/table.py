"""The base classes of the tables of a config."""

from __future__ import annotations

from typing import Any

import pydantic


class Table(pydantic.BaseModel):
    """A table of a config that has only the keys listed as fields."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class OpenTable(Table):
    """A table that also has the keys of the method, model, topology, data set or shift that it names."""

    model_config = pydantic.ConfigDict(frozen=True, extra="allow")

    @property
    def keys(self) -> dict[str, Any]:
        """The keys that are not listed as fields, with their values."""
        return dict(self.model_extra or {})
