"""Takes the events of an erased player out of the game tables, refused ones included, while no batch is in flight; and
what live-ops keeps of the player in the stores: features, sessions, who was there in which minute.

Figures of games stay: they name nobody. Former versions of tables keep their files until VACUUM, since readers and time
travel may be at one of them. The keys and what else there is of a subject are `pii`'s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from sqlalchemy import ColumnElement, Engine, and_, func, inspect, select
from sqlalchemy import Table as Rows

from engagement_platform.engine.database import open_engine, reading, writing
from engagement_platform.engine.lease import Lease, LeaseStore
from engagement_platform.engine.stores import CheckpointStore
from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished, blocking_batches
from engagement_platform.lake import light, log
from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.lake.erased import current_files, rewrite
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.optimize import Place, checkpoint_log
from engagement_platform.lake.session import spark_session
from engagement_platform.layout import disk
from engagement_platform.pii.erasure import Former, Subject, naming, once
from engagement_platform.pii.keys import empty_log, overwrite_what_goes
from engagement_platform.pipelines.games.feed import Feed, shipped
from engagement_platform.pipelines.games.live_ops_store import LOCK, SEEN
from engagement_platform.pipelines.games.players import LOCK as PLAYERS_LOCK
from engagement_platform.pipelines.games.players import PLAYER, SESSION
from engagement_platform.settings import Settings

_LOG_RETENTION = "interval 30 days"
"""Delta's default of delta.logRetentionDuration."""
_SLACK = timedelta(days=2)
"""VACUUM and the cleaning of logs are daily jobs; one may fail."""


@dataclass(frozen=True)
class GameTables:
    """All tables of a feed, also of types that are declared no longer."""

    settings: Settings
    feed: Feed

    @property
    def name(self) -> str:
        """Of all of them, for receipts."""
        return f"{self.feed.group}/*"

    def erase(self, subject: Subject) -> int:
        """Take the player's rows out, and refused lines that name the player; how many.

        A line of which no game can be read goes, whatever game was asked for. Log entries that have expired go too.
        Raises LeaseUnavailable, OthersBatchUnfinished (a batch that was begun may be about to write such rows),
        TableBusy; the same call does the rest.
        """
        root = self.settings.lake
        with self._lake() as lake, nobody_lands(self.settings, self.feed) as lease:
            gone = 0
            for table in self._tables():
                assert lake is not None, "there is a table"
                lease.check()
                found = self._found(table, subject)
                gone += self._count(table, subject)
                # Also without a row: then it closes a table that a crash left open.
                rewrite(lake, table, once(), on=found.column_names, gone=found)
                checkpoint_log(Place(table.name, table.uri(root), root), clean=True)
        return gone

    def left(self, subject: Subject) -> int:
        """How many rows there are of the player, and refused lines that name the player."""
        return sum(self._count(table, subject) for table in self._tables())

    def keeps(self) -> Mapping[Former, timedelta]:
        """As the slowest of the tables keeps them."""
        return kept_for(self.settings, list(self._tables()))

    def former(self, path: Path) -> Former | None:
        """What a file below the feed's folder is that no row of today is in."""
        folder = Path(self.settings.lake, self.feed.group)
        if "://" in self.settings.lake or folder not in path.parents:
            return None
        key, *inside = path.relative_to(folder).parts
        table = next((table for table in self._tables() if table.key == (self.feed.group, key)), None)
        if table is None or not inside:
            return None
        if inside[0] == "_delta_log":
            return Former.LOG
        return None if path in current_files(self.settings.lake, table) else Former.FILES

    def _tables(self) -> Iterator[Table]:
        """Those that are there, by name; refused events last."""
        declared, quarantine = self.feed.types, self.feed.quarantine
        there = (tuple(name.split("/")) for name in log.tables(self.settings.lake))
        for key in ((group, name) for group, name in there if group == self.feed.group):
            if key[1] in declared:
                yield declared[key[1]].table
            elif key != quarantine.key and (table := _as_it_is(self.settings.lake, key)) is not None:
                yield table
        if log.version(quarantine.uri(self.settings.lake)) is not None:
            yield quarantine

    def _found(self, table: Table, subject: Subject) -> pa.Table:
        """What the rows to take out equal; without a row where there is none to take out."""
        if table == self.feed.quarantine:
            return self._refused(subject)
        return pa.table(_key(subject)).slice(0, 1 if self._count(table, subject) else 0)

    def _count(self, table: Table, subject: Subject) -> int:
        if table == self.feed.quarantine:
            return int(self._refused(subject).num_rows)
        found = self._opened(table)
        return 0 if found is None else int(light.find(found, ["game_id"], _key(subject)).num_rows)

    def _refused(self, subject: Subject) -> pa.Table:
        """Object, line and content of the refused lines in which the subject's id stands."""
        columns = {"source_object": pa.string(), "source_line": pa.int64(), "value": pa.binary()}
        kept = []
        words, found = naming(subject), self._opened(self.feed.quarantine)
        for rows in light.batches(found, list(columns), {}) if found is not None else ():
            kept += [row for row in rows.to_pylist() if _names(row["value"], words, subject.game)]
        return pa.Table.from_pylist(kept, schema=pa.schema(list(columns.items())))

    def _opened(self, table: Table) -> DeltaTable | None:
        return log.open_log(table.uri(self.settings.lake))

    @contextmanager
    def _lake(self) -> Iterator[Lake | None]:
        """With a session of Spark; None where there is no table."""
        if next(self._tables(), None) is None:
            yield None
            return
        with spark_session(self.settings, "erase") as spark:
            yield Lake(spark, self.settings)


@contextmanager
def nobody_lands(settings: Settings, feed: Feed) -> Iterator[Lease]:
    """While nobody reads objects of a feed or writes its tables. Raises LeaseUnavailable, OthersBatchUnfinished."""
    # The one that stands for all of them, as for batches.
    with nobody_writes(settings, (feed.quarantine.name,)) as (lease,):
        yield lease


@contextmanager
def nobody_writes(settings: Settings, leased: Sequence[str]) -> Iterator[list[Lease]]:
    """While an erasure holds the leases of tables, and no batch of them is half done.

    Raises LeaseUnavailable, OthersBatchUnfinished.
    """
    stores, engine = settings.stores, open_engine(settings.store_url)
    leases = LeaseStore(engine, ttl=stores.lease_ttl)
    with ExitStack() as held:
        names = (f"table/{name}" for name in leased)
        taken = [held.enter_context(leases.acquire(n, purpose="erase", wait=stores.lease_wait)) for n in names]
        if others := blocking_batches("erase", leased, CheckpointStore(engine).unfinished()):
            raise OthersBatchUnfinished("erase", leased, others)
        yield taken


def kept_for(settings: Settings, tables: Sequence[Table]) -> dict[Former, timedelta]:
    """How long the slowest of some tables keeps files and log entries of former versions, with two days to spare."""
    said = [found.properties for table in tables if (found := log.describe(table.uri(settings.lake)))]
    window = settings.maintenance.rollback_window
    logs = ({disk.RETENTION: each.get("delta.logRetentionDuration", _LOG_RETENTION)} for each in said)
    return {
        Former.FILES: max([window, *map(disk.retention, said)]) + _SLACK,
        Former.LOG: max(map(disk.retention, logs), default=timedelta(0)) + _SLACK,
    }


def game_tables(settings: Settings, declared: Sequence[Feed] = ()) -> list[GameTables]:
    """What an erasure reaches of the tables of the feed that ships and of declared ones."""
    return [GameTables(settings, feed) for feed in (shipped(settings), *declared)]


def _key(subject: Subject) -> dict[str, list[str]]:
    """What the player's rows have in common."""
    return {"player_id": [subject.id]} | ({} if subject.game is None else {"game_id": [subject.game]})


def _as_it_is(root: str, key: tuple[str, str]) -> Table | None:
    """A table of a type that is declared no longer; None for one that is not of players."""
    found = log.describe("/".join((root, *key)))
    if found is None or not {"player_id", "game_id"}.issubset(found.columns):
        return None
    columns = tuple(Column(column, kind, "") for column, kind in found.columns.items())
    return Table(key, "", columns, Mode.APPEND_ONLY, tuple(found.partitioned_by))


def _names(line: bytes | None, words: re.Pattern[bytes], game: str | None) -> bool:
    """Whether a line names the subject, in whatever way JSON writes it, and is not of another game."""
    if not line:
        return False
    said: object = None
    if b"\\" in line or game is not None:
        try:
            said = json.loads(line)
        except ValueError:
            said = None
    plain = json.dumps(said, ensure_ascii=False).encode("utf-8", "surrogatepass") if said is not None else b""
    if not words.search(line) and not words.search(plain):
        return False
    of_game = said.get("game_id") if isinstance(said, dict) else None
    return game is None or not isinstance(of_game, str) or of_game == game


_OF_PLAYERS = (PLAYER, SESSION, SEEN)


@dataclass(frozen=True)
class PlayersKept:
    """What live-ops keeps of each player. Raises StoresUnavailable."""

    settings: Settings
    name: str = "features of players"

    def erase(self, subject: Subject) -> int:
        """Remove the player's rows; how many. On SQLite the bytes are overwritten, and the write-ahead log emptied."""
        engine, gone = open_engine(self.settings.store_url), 0
        there = list(_tables_of_players(engine))
        if not there:
            return 0
        with writing(engine, LOCK, PLAYERS_LOCK) as connection:
            overwrite_what_goes(connection)
            gone = sum(connection.execute(table.delete().where(_player(table, subject))).rowcount for table in there)
        empty_log(engine)
        return gone

    def left(self, subject: Subject) -> int:
        """How many rows there are of the player."""
        engine = open_engine(self.settings.store_url)
        with reading(engine) as connection:
            counts = (select(func.count()).where(_player(table, subject)) for table in _tables_of_players(engine))
            return sum(connection.execute(query).scalar_one() for query in counts)


def _tables_of_players(engine: Engine) -> Iterator[Rows]:
    """Nobody who never counted has these tables."""
    names = set(inspect(engine).get_table_names())
    return (table for table in _OF_PLAYERS if table.name in names)


def _player(table: Rows, subject: Subject) -> ColumnElement[bool]:
    ours = table.c.player_id == subject.id
    return ours if subject.game is None else and_(ours, table.c.game == subject.game)
