"""One data key for each subject, wrapped by the master key: made, found, wrapped anew, destroyed for good.

Encrypting with them is `vault`. All of it is in the stores' database, in transactions named "pii-keys".
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Row, Table, and_, select

from engagement_platform.engine.database import reading, utc_now, writing
from engagement_platform.engine.records import next_sequence
from engagement_platform.pii.database import PII_ERASED, PII_KEY, PII_SECRET
from engagement_platform.pii.master import Masters
from engagement_platform.pii.sealing import new_key, words

PLAYER = "player"
"""Kind of the tombstones of owners of keys."""
EVERY_GAME = ""
"""Of a tombstone: the subject is erased in all games, also in those that come later."""

_LOCK = "pii-keys"
# Below SQLite's limit of variables in one statement.
_AT_ONCE = 500
# Tenths of a second to wait for readers of SQLite's write-ahead log.
_PATIENCE = 50


class Owner(NamedTuple):
    """Whose a key is: a subject of one game, by reference."""

    game: str
    ref: str
    """Keyed hash of the subject's id, 64 hexadecimal digits; the id itself is stored nowhere in the open."""


@dataclass(frozen=True)
class DataKey:
    """A subject's key, unwrapped."""

    version: int
    key: bytes


class Keyring:
    """The keys of one database. Raises StoresUnavailable, and what the master raises. clock: of created_ts only."""

    def __init__(self, engine: Engine, masters: Masters, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.engine, self._masters, self._clock = engine, masters, clock
        self._secrets: dict[str, bytes] = {}
        self._making = Lock()

    def ref(self, subject: str) -> str:
        """What a subject is called wherever its id must not stand. The same in all games, and after any rotation."""
        return hmac.new(self.secret("index"), subject.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def digest(self, text: str) -> str:
        """The keyed hash that stands for a value under the policy `hash`: 128 bits, to be joined by, not reversed."""
        made = hmac.new(self.secret("hash"), text.encode("utf-8", "surrogatepass"), hashlib.sha256)
        return f"hmac:{made.hexdigest()[:32]}"

    def secret(self, name: str) -> bytes:
        """One of the keys that are nobody's, 32 bytes; made on first use, the same ever after."""
        with self._making:
            if name not in self._secrets:
                self._secrets[name] = self._found_secret(name)
            return self._secrets[name]

    def _found_secret(self, name: str) -> bytes:
        query = select(PII_SECRET).where(PII_SECRET.c.name == name)
        with reading(self.engine) as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            with writing(self.engine, _LOCK) as connection:
                row = connection.execute(query).one_or_none()
                if row is None:
                    made = new_key()
                    version, wrapped = self._masters.wrap(made, words("secret", name))
                    connection.execute(PII_SECRET.insert().values(name=name, master_version=version, wrapped=wrapped))
                    return made
        return self._masters.unwrap(row.master_version, row.wrapped, words("secret", name))

    def keys_for(self, owners: Collection[Owner]) -> dict[Owner, DataKey]:
        """The newest key of each, made where there is none; erased ones are left out.

        One read, and one write when a key has to be made.
        """
        wanted = set(owners)
        with reading(self.engine) as connection:
            found, erased = self._newest(connection, wanted), erased_keys(connection, PLAYER, wanted)
        if missing := wanted - found.keys() - erased:
            with writing(self.engine, _LOCK) as connection:
                erased = erased_keys(connection, PLAYER, wanted)
                found |= self._newest(connection, missing)
                made = [self._made(owner) for owner in sorted(missing - found.keys() - erased, key=str)]
                if made:
                    connection.execute(PII_KEY.insert(), [row for row, _ in made])
                found |= {Owner(str(row["game"]), str(row["subject_ref"])): key for row, key in made}
        return {owner: key for owner, key in found.items() if owner not in erased}

    def key(self, owner: Owner, version: int) -> DataKey | None:
        """One key; None when there is none, most often because it was destroyed."""
        query = select(PII_KEY).where(_of(PII_KEY, owner), PII_KEY.c.version == version)
        with reading(self.engine) as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else self._unwrapped(row)

    def erased(self, owners: Collection[Owner], before: int | None = None) -> set[Owner]:
        """Those that have a tombstone. before: that had one when the batch with this sequence began."""
        with reading(self.engine) as connection:
            return erased_keys(connection, PLAYER, owners, before)

    def count(self, owner: Owner) -> int:
        """How many keys there are of a subject, or with EVERY_GAME in all games."""
        with reading(self.engine) as connection:
            return len(connection.execute(select(PII_KEY.c.version).where(_in_games(owner))).all())

    def destroy(self, owner: Owner) -> int:
        """Put up the tombstone and destroy the subject's keys, in one transaction; how many. Doing it twice is fine.

        On SQLite the bytes are overwritten and the write-ahead log is emptied; PostgreSQL keeps them in its files until
        autovacuum, in its log and in backups: there they are wrapped, and rotating the master key makes them useless.
        """
        with writing(self.engine, _LOCK) as connection:
            overwrite_what_goes(connection)
            put_up(connection, PLAYER, [owner])
            gone = connection.execute(PII_KEY.delete().where(_in_games(owner))).rowcount
        empty_log(self.engine)
        return gone

    def rotate(self) -> tuple[str, int]:
        """Wrap every key with a new master key, and forget the former ones; (its version, how many keys).

        In a file a new key is made; with KMS, set pii.kms_key_id to the new one before. A rotation that ends in the
        middle is finished by the next one. Data keys and what they encrypt stay as they are, and keys that are made
        meanwhile are wrapped with the new one. Short transactions: others wait for some hundred keys at most.
        """
        with writing(self.engine, _LOCK):
            version = self._masters.current() if self._masters.in_kms else self._masters.local.add()
        count = sum(self._rewrap(table, version) for table in (PII_SECRET, PII_KEY))
        if not self._masters.in_kms:
            with writing(self.engine, _LOCK) as connection:
                if not any(self._old(connection, table, version) for table in (PII_SECRET, PII_KEY)):
                    self._masters.local.forget_former()
        empty_log(self.engine)
        return version, count

    def _rewrap(self, table: Table, version: str) -> int:
        count, keys = 0, [column.name for column in table.primary_key]
        while True:
            with writing(self.engine, _LOCK) as connection:
                overwrite_what_goes(connection)
                rows = self._old(connection, table, version)
                for row in rows:
                    about = _about(table, row)
                    plain = self._masters.unwrap(row.master_version, row.wrapped, about)
                    used, wrapped = self._masters.wrap(plain, about)
                    same = and_(*(table.c[name] == getattr(row, name) for name in keys))
                    connection.execute(table.update().where(same).values(master_version=used, wrapped=wrapped))
            if not rows:
                return count
            count += len(rows)

    def _old(self, connection: Connection, table: Table, version: str) -> list[Row[tuple[object, ...]]]:
        query = select(table).where(table.c.master_version != version).limit(_AT_ONCE)
        return list(connection.execute(query).all())

    def _made(self, owner: Owner) -> tuple[Mapping[str, object], DataKey]:
        key = new_key()
        version, wrapped = self._masters.wrap(key, words("key", owner.game, owner.ref, 1))
        row = {
            "game": owner.game, "subject_ref": owner.ref, "version": 1, "master_version": version, "wrapped": wrapped,
            "created_ts": self._clock(),
        }  # fmt: skip
        return row, DataKey(1, key)

    def _newest(self, connection: Connection, owners: set[Owner]) -> dict[Owner, DataKey]:
        found: dict[Owner, DataKey] = {}
        for refs in _chunks({owner.ref for owner in owners}):
            query = select(PII_KEY).where(PII_KEY.c.subject_ref.in_(refs)).order_by(PII_KEY.c.version)
            for row in connection.execute(query):
                owner = Owner(row.game, row.subject_ref)
                if owner in owners:
                    found[owner] = self._unwrapped(row)
        return found

    def _unwrapped(self, row: Row[tuple[object, ...]]) -> DataKey:
        return DataKey(row.version, self._masters.unwrap(row.master_version, row.wrapped, _about(PII_KEY, row)))


K = TypeVar("K", bound=tuple[str, str])
"""(organization or game, reference)"""


def put_up(connection: Connection, kind: str, keys: Iterable[tuple[str, str]]) -> int:
    """Tombstones for keys; how many are new."""
    new = 0
    for within, ref in sorted(set(keys)):
        table = PII_ERASED.c
        same = and_(table.kind == kind, table.within == within, table.ref == ref)
        if connection.execute(select(PII_ERASED).where(same)).first() is None:
            values = {"kind": kind, "within": within, "ref": ref, "sequence": next_sequence(connection)}
            connection.execute(PII_ERASED.insert().values(**values))
            new += 1
    return new


def erased_keys(connection: Connection, kind: str, keys: Collection[K], before: int | None = None) -> set[K]:
    """Those of these keys that have a tombstone, or one everywhere. before: put up before this sequence."""
    found: set[tuple[str, str]] = set()
    for refs in _chunks({ref for _, ref in keys}):
        query = select(PII_ERASED).where(PII_ERASED.c.kind == kind, PII_ERASED.c.ref.in_(refs))
        rows = connection.execute(query)
        found |= {(row.within, row.ref) for row in rows if before is None or row.sequence < before}
    return {key for key in keys if key in found or (EVERY_GAME, key[1]) in found}


def empty_log(engine: Engine) -> None:
    """Empty SQLite's write-ahead log; a reader may keep it for a moment."""
    if engine.dialect.name != "sqlite":
        return
    raw = engine.raw_connection()
    try:
        for _ in range(_PATIENCE):
            (busy, *_rest) = raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() or (0,)
            if not busy:
                return
            time.sleep(0.1)
    finally:
        raw.close()


def overwrite_what_goes(connection: Connection) -> None:
    """Have SQLite overwrite what this transaction removes."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA secure_delete=ON")


def _about(table: Table, row: Row[tuple[object, ...]]) -> bytes:
    if table is PII_SECRET:
        return words("secret", row.name)
    return words("key", row.game, row.subject_ref, row.version)


def _of(table: Table, owner: Owner) -> ColumnElement[bool]:
    return and_(table.c.game == owner.game, table.c.subject_ref == owner.ref)


def _in_games(owner: Owner) -> ColumnElement[bool]:
    return PII_KEY.c.subject_ref == owner.ref if owner.game == EVERY_GAME else _of(PII_KEY, owner)


def _chunks(refs: set[str]) -> Iterator[list[str]]:
    listed = sorted(refs)
    for start in range(0, len(listed), _AT_ONCE):
        yield listed[start : start + _AT_ONCE]
