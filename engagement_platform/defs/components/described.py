"""Keeps what fields say of themselves in the schema that Dagster shows: it drops that of defaults (Dagster 1.13)."""

from __future__ import annotations

import dagster as dg
from pydantic import BaseModel


class Described(dg.Resolvable):
    """A component's attributes, each with its description."""

    @classmethod
    def model(cls) -> type[BaseModel]:
        """What may stand under `attributes`."""
        made = super().model()
        own: dict[str, str | None] = {}
        if issubclass(cls, BaseModel):
            own = {name: field.description for name, field in cls.model_fields.items()}
        lacking = [name for name, field in made.model_fields.items() if not field.description and own.get(name)]
        for name in lacking:
            made.model_fields[name].description = own[name]
        if lacking:
            made.model_rebuild(force=True)
        return made
