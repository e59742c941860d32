"""Tombstones of erased persons, engagements, players and keys of entities, by keyed hash; ingestion looks them up.

Also the requests of erasures that are under way, encrypted. Erasing is `erasing`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Any, Protocol

from sqlalchemy import func, select

from engagement_platform.engine.database import reading, writing
from engagement_platform.lake.erased import PSEUDONYM
from engagement_platform.pii.keys import LOCK, PLAYER, Keyring, Owner, erased_keys, open_pii, put_up
from engagement_platform.pii.master import Masters
from engagement_platform.pii.schema import PII_ERASED, PII_ERASURE
from engagement_platform.pii.sealing import Sealer, derived, words
from engagement_platform.settings import Settings

PERSON, ENGAGEMENT = "person", "engagement"
ANYWHERE = ""
"""Of a person: in every organization. Of an entity's key: it has no organization."""

Id = tuple[str, str]
"""organization_id (or ANYWHERE), and an id within it."""


def entity(name: str) -> str:
    """The kind of an entity's keys, such as those of `profile`."""
    return f"entity/{name}"


class Tombstones(Protocol):
    """What ingestion looks up."""

    def organizations(self, kind: str) -> set[str]:
        """Organizations with tombstones of a kind, or ANYWHERE; none: no id of the kind is erased."""
        ...

    def erased(self, kind: str, ids: Collection[Id]) -> set[Id]:
        """Those of these ids that are erased."""
        ...

    def erased_players(self, players: Collection[tuple[str, str]], before: int | None) -> set[tuple[str, str]]:
        """Those of these (game, player) that are erased. before: that were when the batch with this sequence began."""
        ...


class StoredTombstones:
    """Those in the stores' database; opened when it is first asked. Raises StoresUnavailable.

    Cost of a look-up: one small query while there is no tombstone of the kind; then a hash for each id of the
    organizations that have one, and a query for 500 ids. Batches look each of their ids up once.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @cached_property
    def keyring(self) -> Keyring:
        return Keyring(open_pii(self._settings.store_url), Masters(self._settings))

    def ref(self, kind: str, id_: str) -> str:
        """What an id is called in tombstones."""
        return self.keyring.ref(json.dumps([kind, id_]))

    def pseudonym(self, person_id: str) -> str:
        """What replaces a person's id where one is needed, in aliases and notifications."""
        return PSEUDONYM + self.ref("pseudonym", person_id)[:32]

    def organizations(self, kind: str) -> set[str]:
        query = select(PII_ERASED.c.within).where(PII_ERASED.c.kind == kind).distinct()
        with reading(self.keyring.engine) as connection:
            return set(connection.execute(query).scalars())

    def erased(self, kind: str, ids: Collection[Id]) -> set[Id]:
        within = self.organizations(kind)
        asked = [key for key in ids if key[0] in within or ANYWHERE in within]
        keys = {(organization, self.ref(kind, id_)): (organization, id_) for organization, id_ in asked}
        if not keys:
            return set()
        with reading(self.keyring.engine) as connection:
            return {keys[key] for key in erased_keys(connection, kind, keys.keys())}

    def erased_players(self, players: Collection[tuple[str, str]], before: int | None) -> set[tuple[str, str]]:
        if not self.organizations(PLAYER):
            return set()
        owners = {Owner(game, self.keyring.ref(player)): (game, player) for game, player in players}
        return {owners[owner] for owner in self.keyring.erased(owners, before)}

    def put_up(self, kind: str, ids: Iterable[Id]) -> int:
        """Tombstones for these ids; how many are new."""
        keys = [(organization, self.ref(kind, id_)) for organization, id_ in ids]
        if not keys:
            return 0
        with writing(self.keyring.engine, LOCK) as connection:
            return put_up(connection, kind, keys)

    def ask(self, subject_ref: str, what: Mapping[str, Any], after: int = 0) -> int:
        """Write down, encrypted, what is to be erased; its number. The same of the same subject once only.

        after: the last number that a batch has, also where these stores are from a backup and have not given it yet.
        """
        table, plain, sealer = PII_ERASURE, json.dumps(what, sort_keys=True).encode(), self._sealer
        with writing(self.keyring.engine, LOCK) as connection:
            for row in connection.execute(select(table).where(table.c.subject_ref == subject_ref)).all():
                if self._opened(row.sealed, subject_ref) == plain:
                    return int(row.number)
            sealed = sealer.seal(plain, words("erasure", subject_ref))
            made = connection.execute(table.insert().values(subject_ref=subject_ref, sealed=sealed))
            key = made.inserted_primary_key
            assert key is not None
            drawn = table.c.number == int(key[0])
            others = connection.execute(select(func.max(table.c.number)).where(~drawn)).scalar() or 0
            # What was numbered by hand has not moved PostgreSQL's own count.
            number = max(int(key[0]), after + 1, int(others) + 1)
            connection.execute(table.update().where(drawn).values(number=number))
            return number

    def next_asked(self, after: int) -> int | None:
        """The first erasure with a greater number that is not finished."""
        query = select(PII_ERASURE.c.number).where(PII_ERASURE.c.number > after).order_by(PII_ERASURE.c.number)
        with reading(self.keyring.engine) as connection:
            return connection.execute(query.limit(1)).scalar()

    def asked(self, number: int) -> tuple[str, Mapping[str, Any]] | None:
        """(the subject's reference, what is to be erased); None when it is finished."""
        with reading(self.keyring.engine) as connection:
            row = connection.execute(select(PII_ERASURE).where(PII_ERASURE.c.number == number)).one_or_none()
        return None if row is None else (row.subject_ref, json.loads(self._opened(row.sealed, row.subject_ref)))

    def forget_asked(self, through: int) -> None:
        """Forget erasures up to this number, which are finished. On SQLite the bytes are overwritten."""
        with writing(self.keyring.engine, LOCK) as connection:
            connection.execute(PII_ERASURE.delete().where(PII_ERASURE.c.number <= through))

    @cached_property
    def _sealer(self) -> Sealer:
        return Sealer(derived(self.keyring.secret("erasing"), "erasing"))

    def _opened(self, sealed: bytes, subject_ref: str) -> bytes:
        return self._sealer.open(sealed, words("erasure", subject_ref), "An erasure that is under way")
