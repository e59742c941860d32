"""One data key for each subject, wrapped by the master key: made, found, wrapped anew, destroyed for good.

Encrypting with them is `vault`. All of it is in the stores' database, in transactions named "pii-keys".
"""

from __future__ import annotations

import hashlib
import hmac
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple, TypeVar, cast

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    and_,
    select,
)

from engagement_platform.engine.database import (
    ensure_tables,
    next_sequence,
    open_engine,
    reading,
    utc_now,
    writing,
)
from engagement_platform.engine.schema import UtcTimestamp
from engagement_platform.pii.master import Masters
from engagement_platform.pii.sealing import new_key, words

METADATA = MetaData()

# Keys that are nobody's: what makes references, hashes, spool keys and signatures.
PII_SECRET = Table(
    "pii_secret",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("master_version", String(2048), nullable=False),
    Column("wrapped", LargeBinary, nullable=False),
)

PII_KEY = Table(
    "pii_key",
    METADATA,
    Column("game", String(256), primary_key=True),
    Column("subject_ref", String(64), primary_key=True),
    Column("version", BigInteger, primary_key=True),
    Column("master_version", String(2048), nullable=False, index=True),
    Column("wrapped", LargeBinary, nullable=False),
    Column("created_ts", UtcTimestamp, nullable=False),
)

# Tombstones: players of a game, persons and engagements of an organization ("": of all), keys of an entity. By keyed
# hash, so the table does not name whom it is about.
PII_ERASED = Table(
    "pii_erased",
    METADATA,
    Column("kind", String(128), primary_key=True),
    Column("within", String(1024), primary_key=True),
    Column("ref", String(64), primary_key=True),
    # Of the stores, as batches have one: tells whether a batch began before or after.
    Column("sequence", BigInteger, nullable=False),
)

# Erasures of these tables that are asked for and not finished: who it is, encrypted. Emptied in the end.
PII_ERASURE = Table(
    "pii_erasure",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("subject_ref", String(64), nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)

PLAYER = "player"
"""Kind of the tombstones of owners of keys."""
EVERY_GAME = ""
"""Of a tombstone: the subject is erased in all games, also in those that come later."""

LOCK = "pii-keys"
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
    """The keys of one database. Raises StoresUnavailable, and what the master raises."""

    def __init__(self, engine: Engine, masters: Masters) -> None:
        self.engine, self._masters = engine, masters
        self._secrets: dict[str, bytes] = {}
        self._making = Lock()

    def ref(self, subject: str) -> str:
        """The reference of a subject, by which it is named instead of its id. The same after any rotation."""
        return hmac.new(self.secret("index"), subject.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def digest(self, text: str) -> str:
        """The keyed hash of a value under the policy `hash`: 128 bits, to be joined by, not reversed."""
        made = hmac.new(self.secret("hash"), text.encode("utf-8", "surrogatepass"), hashlib.sha256)
        return f"hmac:{made.hexdigest()[:32]}"

    def secret(self, name: str) -> bytes:
        """One of the keys that belong to no subject, 32 bytes; made on first use, the same ever after."""
        with self._making:
            if name not in self._secrets:
                self._secrets[name] = self._found_secret(name)
            return self._secrets[name]

    def _found_secret(self, name: str) -> bytes:
        query, about = select(PII_SECRET).where(PII_SECRET.c.name == name), words("secret", name)
        with reading(self.engine) as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            with writing(self.engine, LOCK) as connection:
                row = connection.execute(query).one_or_none()
                if row is None:
                    made = new_key()
                    version, wrapped = self._masters.now.wrap(made, about)
                    connection.execute(PII_SECRET.insert().values(name=name, master_version=version, wrapped=wrapped))
                    return made
        return self._masters.unwrap(row.master_version, row.wrapped, about)

    def keys_for(self, owners: Collection[Owner]) -> dict[Owner, DataKey]:
        """The newest key of each, made where there is none; erased ones are left out."""
        wanted = set(owners)
        with reading(self.engine) as connection:
            found, erased = self._newest(connection, wanted), erased_keys(connection, PLAYER, wanted)
        if missing := wanted - found.keys() - erased:
            with writing(self.engine, LOCK) as connection:
                erased = erased_keys(connection, PLAYER, wanted)
                found |= self._newest(connection, missing)
                # Within the transaction, so that no rotation comes between wrapping and inserting.
                new = [self._made(owner) for owner in sorted(missing - found.keys() - erased)]
                if new:
                    connection.execute(PII_KEY.insert(), [row for row, _ in new])
                found |= {Owner(row["game"], row["subject_ref"]): key for row, key in new}
        return {owner: key for owner, key in found.items() if owner not in erased}

    def key(self, owner: Owner, version: int) -> DataKey | None:
        """One key; None when there is none, most often because it was destroyed."""
        query = select(PII_KEY).where(_in_games(owner), PII_KEY.c.game == owner.game, PII_KEY.c.version == version)
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
        """Put up the tombstone and destroy the subject's keys, in one transaction; how many.

        On SQLite the bytes are overwritten and the write-ahead log is emptied; PostgreSQL keeps them in its files until
        autovacuum, in its log and in backups: there they are wrapped, and rotating the master key makes them useless.
        """
        with writing(self.engine, LOCK) as connection:
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
        local = self._masters.local if self._masters.now is self._masters.local else None
        with writing(self.engine, LOCK):
            version = self._masters.now.current() if local is None else local.add()
        count = sum(self._rewrap(table, version) for table in (PII_SECRET, PII_KEY))
        if local is not None:
            with writing(self.engine, LOCK) as connection:
                if not any(self._old(connection, table, version) for table in (PII_SECRET, PII_KEY)):
                    local.forget_former()
        empty_log(self.engine)
        return version, count

    def _rewrap(self, table: Table, version: str) -> int:
        count, keys = 0, [column.name for column in table.primary_key]
        while True:
            with writing(self.engine, LOCK) as connection:
                rows = self._old(connection, table, version)
                for row in rows:
                    plain = self._masters.unwrap(row.master_version, row.wrapped, _about(row))
                    used, wrapped = self._masters.now.wrap(plain, _about(row))
                    same = and_(*(table.c[name] == getattr(row, name) for name in keys))
                    connection.execute(table.update().where(same).values(master_version=used, wrapped=wrapped))
            if not rows:
                return count
            count += len(rows)

    def _old(self, connection: Connection, table: Table, version: str) -> list[Row[Any]]:
        query = select(table).where(table.c.master_version != version).limit(_AT_ONCE)
        return list(connection.execute(query).all())

    def _made(self, owner: Owner) -> tuple[Mapping[str, Any], DataKey]:
        key = new_key()
        version, wrapped = self._masters.now.wrap(key, words("key", owner.game, owner.ref, 1))
        row = {"game": owner.game, "subject_ref": owner.ref, "version": 1, "master_version": version}
        return {**row, "wrapped": wrapped, "created_ts": utc_now()}, DataKey(1, key)

    def _newest(self, connection: Connection, owners: set[Owner]) -> dict[Owner, DataKey]:
        rows = [
            row
            for refs in _chunks({owner.ref for owner in owners})
            for row in connection.execute(select(PII_KEY).where(PII_KEY.c.subject_ref.in_(refs)))
        ]
        newest = {Owner(row.game, row.subject_ref): row for row in sorted(rows, key=lambda row: row.version)}
        return {owner: self._unwrapped(row) for owner, row in newest.items() if owner in owners}

    def _unwrapped(self, row: Row[Any]) -> DataKey:
        return DataKey(row.version, self._masters.unwrap(row.master_version, row.wrapped, _about(row)))


K = TypeVar("K", bound=tuple[str, str])
"""(organization or game, reference)"""


def put_up(connection: Connection, kind: str, keys: Iterable[tuple[str, str]]) -> int:
    """Tombstones for keys; how many are new."""
    new, table = 0, PII_ERASED.c
    for within, ref in sorted(set(keys)):
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
        rows = connection.execute(select(PII_ERASED).where(PII_ERASED.c.kind == kind, PII_ERASED.c.ref.in_(refs)))
        found |= {(row.within, row.ref) for row in rows if before is None or row.sequence < before}
    return {key for key in keys if key in found or (EVERY_GAME, key[1]) in found}


def open_pii(url: str) -> Engine:
    """Connect to the stores, with these tables. Raises what `open_engine` raises."""
    engine = open_engine(url)
    ensure_tables(engine, METADATA)
    return engine


def empty_log(engine: Engine) -> None:
    """Empty the write-ahead log of stores on SQLite."""
    if engine.dialect.name == "sqlite":
        raw = engine.raw_connection()
        try:
            truncate_log(cast(sqlite3.Connection, raw.dbapi_connection))
        finally:
            raw.close()


def truncate_log(connection: sqlite3.Connection) -> None:
    """Empty SQLite's write-ahead log; waits a few seconds for readers."""
    for _ in range(_PATIENCE):
        (busy, *_rest) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() or (0,)
        if not busy:
            return
        time.sleep(0.1)


def _about(row: Row[Any]) -> bytes:
    """What a wrapped key is bound to."""
    found = row._mapping
    if "name" in found:
        return words("secret", found["name"])
    return words("key", found["game"], found["subject_ref"], found["version"])


def _in_games(owner: Owner) -> ColumnElement[bool]:
    same = PII_KEY.c.subject_ref == owner.ref
    return same if owner.game == EVERY_GAME else and_(same, PII_KEY.c.game == owner.game)


def _chunks(refs: set[str]) -> Iterator[list[str]]:
    listed = sorted(refs)
    return (listed[start : start + _AT_ONCE] for start in range(0, len(listed), _AT_ONCE))
