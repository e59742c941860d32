"""Which persons and profiles a subject is, and which rows of which tables are theirs. Declarations only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import (
    AMENDMENT,
    MAPPING,
    MUTATION_REQUEST,
    OPERATION,
    ORIGINAL,
    SAID_NAME,
    SUPERSEDED,
)
from engagement_platform.landing.withheld import Named
from engagement_platform.pii.tombstones import ENGAGEMENT, PERSON


@dataclass(frozen=True)
class Side:
    """A table whose rows go when one of some columns names an erased person, or an engagement of one."""

    named: Named
    key: tuple[str, ...]
    """Columns, none of them null, that tell such rows from others."""


SIDE_TABLES: Mapping[Table, Side] = {
    SAID_NAME: Side({PERSON: ("id",)}, ("organization_id", "id")),
    ORIGINAL: Side({ENGAGEMENT: ("engagement_id",)}, ("organization_id", "engagement_id")),
    SUPERSEDED: Side(
        {PERSON: ("source_person_id",), ENGAGEMENT: ("engagement_id",)},
        ("organization_id", "engagement_id", "source_person_id"),
    ),
    AMENDMENT: Side({PERSON: ("from_id",), ENGAGEMENT: ("engagement_id",)}, ("organization_id", "request_id")),
    OPERATION: Side({PERSON: ("from_id", "to_id")}, ("organization_id", "from_id", "request_id")),
    MUTATION_REQUEST: Side(
        {PERSON: ("from_id", "to_id"), ENGAGEMENT: ("engagement_id",)}, ("topic", "partition", "offset", "request_id")
    ),
    MAPPING: Side({PERSON: ("id",)}, ("organization_id", "id")),
}


@dataclass(frozen=True)
class Whom:
    """Who a subject is in these tables. Unless said otherwise its id is that of a person everywhere, and of a profile.

    persons: ids as person_id and source_person_id have them. organizations: only in these; none: in all, also later
    ones. profiles: keys of the entity `profile`.
    """

    persons: tuple[str, ...]
    organizations: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        subject: str,
        persons: Sequence[str] = (),
        organizations: Sequence[str] = (),
        profiles: Sequence[str] = (),
    ) -> Whom:
        """The subject's own id where nothing else is said."""
        return cls(tuple(persons) or (subject,), tuple(organizations), tuple(profiles) or (subject,))

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids, each once."""
        return tuple(dict.fromkeys((*self.persons, *self.profiles)))

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {name: list(value) for name, value in vars(self).items()}

    @classmethod
    def of_json(cls, said: Mapping[str, Any]) -> Whom:
        """What `as_json` gave."""
        return cls(**{name: tuple(value) for name, value in said.items()})
