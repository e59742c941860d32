"""Which persons and profiles a subject is, in which organizations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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
