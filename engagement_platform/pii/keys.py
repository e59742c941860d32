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

from sqlalchemy import ColumnElement, Connection, CursorResult, Engine, Row, Table, and_, exists, func, select, tuple_

from engagement_platform.engine.database import ensure_tables, next_sequence, open_engine, reading, utc_now, writing
from engagement_platform.errors import PlatformError
from engagement_platform.pii.master import MasterKeyUnusable, Masters, same_master
from engagement_platform.pii.schema import METADATA, PII_ERASED, PII_KEY, PII_SECRET
from engagement_platform.pii.sealing import new_key, words

PLAYER = "player"
"""Kind of the tombstones of owners of keys."""
EVERY_GAME = ""
"""Of a tombstone: the subject is erased in all games, also in those that come later."""

LOCK = "pii-keys"
# Below SQLite's limit of variables in one statement.
_AT_ONCE = 500
_TRIES = 5
"""Only a rotation that ends while a key is read or wrapped makes another one necessary."""
# Tenths of a second to wait for readers of SQLite's write-ahead log.
_PATIENCE = 50


class MasterKeyBusy(PlatformError):
    """Others rotated the master key whenever keys were to be wrapped, or it is another one than wraps what is there."""

    def __init__(self, tries: int) -> None:
        super().__init__(
            f"Keys were wrapped {tries} times, and each time another process had rotated the master key meanwhile, or "
            "those that are there are wrapped by another one. Every key can be read as before, and none was made. See "
            "that all processes have the same pii.kms_key_id, that no rotation runs, and that "
            "`engagement-platform pii rotate` was called since the setting was changed; then the same again."
        )


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
        for _ in range(_TRIES):
            with reading(self.engine) as connection:
                row = connection.execute(query).one_or_none()
            if row is not None:
                return self._plain(row)
            version, wrapped = self._masters.now.wrap(new_key(), about)
            with writing(self.engine, LOCK) as connection:
                if connection.execute(query).first() is None and self._may_wrap(connection, version):
                    connection.execute(PII_SECRET.insert().values(name=name, master_version=version, wrapped=wrapped))
        raise MasterKeyBusy(_TRIES)

    def keys_for(self, owners: Collection[Owner]) -> dict[Owner, DataKey]:
        """The newest key of each, made where there is none; erased ones are left out. Raises MasterKeyBusy."""
        found = self.newest(owners)
        missing = set(owners) - found.keys()
        self._make(dict.fromkeys(missing, 1))
        return found | self.newest(missing)

    def key(self, owner: Owner, version: int) -> bytes | None:
        """One key; None when there is none, most often because it was destroyed."""
        same = (PII_KEY.c.game == owner.game, PII_KEY.c.subject_ref == owner.ref, PII_KEY.c.version == version)
        with reading(self.engine) as connection:
            row = connection.execute(select(PII_KEY).where(*same)).one_or_none()
        return None if row is None else self._plain(row)

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
        middle is finished by the next one, and of two at once each leaves all keys under the newest. Keys that are made
        meanwhile are wrapped with it. Raises MasterKeyBusy.
        """
        local, count = self._masters.local if self._masters.now is self._masters.local else None, 0
        if local is not None:
            with writing(self.engine, LOCK):
                local.add()
        for _ in range(_TRIES):
            # Of a file the newest, which another rotation may have made.
            version = self._masters.now.current()
            count += sum(self._rewrap(table, version) for table in (PII_SECRET, PII_KEY))
            with writing(self.engine, LOCK) as connection:
                old = any(self._old(connection, table, version).first() for table in (PII_SECRET, PII_KEY))
                if old or not self._masters.still_wraps(version):
                    continue
                if local is not None:
                    local.forget_former()
            empty_log(self.engine)
            return version, count
        raise MasterKeyBusy(_TRIES)

    def renew(self, after: Owner | None) -> Owner | None:
        """Give the next subjects after this one a further key, some hundred of them; the last. None: there are none.

        Raises MasterKeyBusy.
        """
        by, newest = (PII_KEY.c.game, PII_KEY.c.subject_ref), func.max(PII_KEY.c.version).label("version")
        query = select(*by, newest).group_by(*by).order_by(*by).limit(_AT_ONCE)
        query = query if after is None else query.where(tuple_(*by) > tuple_(*after))
        with reading(self.engine) as connection:
            further = {Owner(game, ref): version + 1 for game, ref, version in connection.execute(query)}
        self._make(further)
        return next(reversed(further), None)

    def newest(self, owners: Collection[Owner]) -> dict[Owner, DataKey]:
        """The newest key of each that has one: an erased one has none."""
        with reading(self.engine) as connection:
            rows = self._newest(connection, owners)
        return {owner: DataKey(row.version, self._plain(row)) for owner, row in rows.items()}

    def forget_former(self, keep: int) -> None:
        """Destroy all keys of each subject but the newest, and so many before it."""
        newer = PII_KEY.alias()
        same = and_(newer.c.game == PII_KEY.c.game, newer.c.subject_ref == PII_KEY.c.subject_ref)
        further = exists().where(same, newer.c.version > PII_KEY.c.version + keep)
        with writing(self.engine, LOCK) as connection:
            connection.execute(PII_KEY.delete().where(further))
        empty_log(self.engine)

    def _rewrap(self, table: Table, version: str) -> int:
        """Wrap anew what is not under this version, each key once; how many that were."""
        count, last, by = 0, None, list(table.primary_key)
        while True:
            with reading(self.engine) as connection:
                rows = self._old(connection, table, version, last).all()
            if not rows:
                return count
            last = tuple(getattr(rows[-1], column.name) for column in by)
            # Outside of the transaction, since KMS may be slow; then only where the key is as it was read.
            wrapped = [(row, self._masters.now.wrap(self._plain(row), _about(row))) for row in rows]
            with writing(self.engine, LOCK) as connection:
                for row, (used, anew) in wrapped:
                    if self._masters.still_wraps(used):
                        same = (_same(table, row), table.c.wrapped == row.wrapped)
                        changed = table.update().where(*same).values(master_version=used, wrapped=anew)
                        count += connection.execute(changed).rowcount

    def _old(
        self, connection: Connection, table: Table, version: str, after: tuple[Any, ...] | None = None
    ) -> CursorResult[Any]:
        """The first keys that are not under this version, by primary key."""
        by = list(table.primary_key)
        query = select(table).where(table.c.master_version != version).order_by(*by).limit(_AT_ONCE)
        return connection.execute(query if after is None else query.where(tuple_(*by) > tuple_(*after)))

    def _make(self, versions: Mapping[Owner, int]) -> None:
        """Make for each owner the key of this version, unless its newest is another one than that before: then another
        process has made it, or an erasure destroyed it. Raises MasterKeyBusy."""
        if not versions:
            return
        for _ in range(_TRIES):
            # Outside of the transaction, since KMS may be slow.
            made = {owner: self._made(owner, version) for owner, version in sorted(versions.items())}
            with writing(self.engine, LOCK) as connection:
                used = {row["master_version"] for row in made.values()}
                if all(self._may_wrap(connection, version) for version in used):
                    newest, erased = self._newest(connection, made), erased_keys(connection, PLAYER, made)
                    before = {owner: newest[owner].version if owner in newest else 0 for owner in made.keys() - erased}
                    new = [made[owner] for owner, version in before.items() if version + 1 == versions[owner]]
                    if new:
                        connection.execute(PII_KEY.insert(), new)
                    return
        raise MasterKeyBusy(_TRIES)

    def _may_wrap(self, connection: Connection, version: str) -> bool:
        """Whether what this master wraps can be read as long as what is there: no rotation is about to forget it, or
        went on to another one, such as KMS, after which the file may be removed."""
        others = connection.execute(select(PII_SECRET.c.master_version)).scalars()
        return self._masters.still_wraps(version) and all(same_master(version, other) for other in others)

    def _made(self, owner: Owner, version: int) -> Mapping[str, Any]:
        used, wrapped = self._masters.now.wrap(new_key(), words("key", owner.game, owner.ref, version))
        row = {"game": owner.game, "subject_ref": owner.ref, "version": version, "master_version": used}
        return {**row, "wrapped": wrapped, "created_ts": utc_now()}

    def _newest(self, connection: Connection, owners: Collection[Owner]) -> dict[Owner, Row[Any]]:
        rows = [
            row
            for refs in _chunks({owner.ref for owner in owners})
            for row in connection.execute(select(PII_KEY).where(PII_KEY.c.subject_ref.in_(refs)))
        ]
        newest = {Owner(row.game, row.subject_ref): row for row in sorted(rows, key=lambda row: row.version)}
        return {owner: row for owner, row in newest.items() if owner in owners}

    def _plain(self, row: Row[Any]) -> bytes:
        for _ in range(_TRIES):
            try:
                return self._masters.unwrap(row.master_version, row.wrapped, _about(row))
            except MasterKeyUnusable:
                # Perhaps a rotation wrapped it anew after it was read, and forgot the former master key.
                table = PII_SECRET if "name" in row._mapping else PII_KEY
                with reading(self.engine) as connection:
                    now = connection.execute(select(table).where(_same(table, row))).one_or_none()
                if now is None or now.wrapped == row.wrapped:
                    raise
                row = now
        raise MasterKeyBusy(_TRIES)


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


def _same(table: Table, row: Row[Any]) -> ColumnElement[bool]:
    return and_(*(column == row._mapping[column.name] for column in table.primary_key))


def _in_games(owner: Owner) -> ColumnElement[bool]:
    same = PII_KEY.c.subject_ref == owner.ref
    return same if owner.game == EVERY_GAME else and_(same, PII_KEY.c.game == owner.game)


def _chunks(refs: set[str]) -> Iterator[list[str]]:
    listed = sorted(refs)
    return (listed[start : start + _AT_ONCE] for start in range(0, len(listed), _AT_ONCE))
