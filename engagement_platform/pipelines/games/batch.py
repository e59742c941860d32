"""One batch of game events: its lines decoded and sorted out once, and what of them goes into which table.

Values and Arrow tables, all made from the manifest and what it pins; committing them is `processes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa

from engagement_platform.engine.model import Manifest
from engagement_platform.lake.arrow import schema_of, table_of
from engagement_platform.lake.audit_columns import stamped_here
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.time_range import within
from engagement_platform.landing.withheld import said_in
from engagement_platform.pii.tombstones import Tombstones
from engagement_platform.pipelines.games.decoding import Decoder
from engagement_platform.pipelines.games.event_type import EventType
from engagement_platform.pipelines.games.feed import Feed
from engagement_platform.pipelines.games.sorting import Decoded, Kept, Line, Refused, Row, decoded, sorted_out

_SHARES = tuple(i / 20 for i in range(21))


@dataclass(frozen=True)
class GameBatch:
    """What becomes of the lines of a batch; the rows are kept in memory, and made into a table when one is written."""

    lake: Lake
    manifest: Manifest
    feed: Feed
    kept: Mapping[str, Kept]
    """Of the types that the batch has events of."""
    refused: Sequence[Refused]
    """Those that quarantine does not hold yet."""
    refused_before: int
    """Those that it does, when old objects are gone over again."""
    rows_in: int
    bytes_in: int
    unknown_fields: int
    erased: int = 0
    """Lines of players who were erased; nothing of them is kept."""
    arrivals: Mapping[datetime, int] = field(default_factory=dict)
    """When objects arrived -> lines in them."""

    def rows(self, name: str) -> pa.Table:
        """The rows of a type, with its table's columns, in the order of their times."""
        declared, kept = self.feed.types[name], self.kept[name].rows
        said = zip(*(row.event.values for row in kept), strict=True)
        columns = dict(zip(declared.said, said, strict=True))
        origin: dict[str, Sequence[object]] = {
            "source_object": [row.object for row in kept],
            "source_line": [row.line for row in kept],
            "ingestion_ts": [self.manifest.ingestion_ts] * len(kept),
            "batch_id": [self.manifest.batch_id] * len(kept),
        }
        schema = schema_of(declared.table)
        made = {**columns, **origin}
        arrays = [pa.array(made[column.name], column.type) for column in schema]
        return pa.Table.from_arrays(arrays, schema=schema).sort_by("event_ts")

    def refused_rows(self) -> pa.Table:
        """The refused lines, with the columns of quarantine."""
        columns = ("source_object", "source_line", "event_type", "value", "reason_code", "reason")
        rows = (dict(zip(columns, _refused(each), strict=True)) for each in self.refused)
        return stamped_here(table_of(rows, self.feed.quarantine, *columns), self.manifest)

    @property
    def by_reason(self) -> dict[str, int]:
        """Reason code -> refused lines."""
        return dict(Counter(each.refusal.code for each in self.refused))

    @property
    def arrival_quantiles_ms(self) -> list[int]:
        """Of the times at which lines arrived in the bucket, for freshness."""
        if not self.arrivals:
            return []
        times = np.repeat([at.timestamp() for at in self.arrivals], list(self.arrivals.values()))
        return [int(at * 1000) for at in np.quantile(times, _SHARES)]


def open_batch(
    lake: Lake,
    manifest: Manifest,
    feed: Feed,
    lines: Iterable[Line],
    decode: Decoder,
    window: timedelta,
    tombstones: Tombstones,
) -> GameBatch:
    """Decode the lines, and hold the events against what the tables have at the manifest's versions.

    tombstones: whose lines are dropped.
    """
    arrivals: Counter[datetime] = Counter()

    def counted() -> Iterable[Line]:
        for line in lines:
            arrivals[line.arrived] += 1
            yield line

    found, erased = _without_erased(decoded(counted(), decode), tombstones, manifest.sequence)

    def known(name: str, rows: Sequence[Row]) -> Mapping[str, Sequence[datetime]]:
        return _landed(lake, manifest, feed.types[name], rows, window)

    refused = _not_there_yet(lake, manifest, feed.quarantine, found.refused)
    return GameBatch(
        lake, manifest, feed, sorted_out(found, known, window), refused, len(found.refused) - len(refused),
        found.lines, found.bytes, found.unknown_fields, erased, arrivals,
    )  # fmt: skip


def _without_erased(found: Decoded, tombstones: Tombstones, sequence: int) -> tuple[Decoded, int]:
    """(what is left without the lines of erased players, how many lines that were).

    Of those who were erased before the batch began, so that a replay of it drops the same; an erasure waits for batches
    that began before it. Refused lines are looked into as far as they are JSON.
    """
    refused = [_player_said(each) for each in found.refused]
    players = {_player(row) for rows in found.rows.values() for row in rows} | set(refused)
    gone = tombstones.erased_players({(game, who) for game, who in players if who is not None}, sequence)
    if not gone:
        return found, 0
    kept = Decoded(lines=found.lines, bytes=found.bytes)
    for name, rows in found.rows.items():
        if stays := [row for row in rows if _player(row) not in gone]:
            kept.rows[name] = stays
    kept.refused = [each for each, player in zip(found.refused, refused, strict=True) if player not in gone]
    dropped = sum(map(len, found.rows.values())) - sum(map(len, kept.rows.values()))
    return kept, dropped + len(found.refused) - len(kept.refused)


def _player(row: Row) -> tuple[str, str | None]:
    """Game and player; their places are those of the columns."""
    game, player = row.event.values[2:4]
    return str(game), None if player is None else str(player)


def _player_said(each: Refused) -> tuple[str, str | None]:
    said = said_in(each.line.content)
    return said.get("game_id", ""), said.get("player_id")


def _landed(
    lake: Lake, manifest: Manifest, declared: EventType, rows: Sequence[Row], window: timedelta
) -> dict[str, list[datetime]]:
    """Times of the events that have landed with one of the rows' ids, near the rows' own times.

    A day at a time: one late event among new ones would ask for all that lies between them.
    """
    version = manifest.table_versions.get(declared.table.name, 0)
    if version == 0:
        # As it was made: without a row. Also of a type that was declared after this batch had been planned.
        return {}
    ids = {row.event.event_id for row in rows}
    times: dict[object, list[datetime]] = {}
    for row in rows:
        times.setdefault(row.event.values[0], []).append(row.event.event_ts)
    found: dict[str, list[datetime]] = {}
    for of_day in times.values():
        first, last = min(of_day) - window, max(of_day) + window
        landed = within(lake, declared.table, version, ("event_id", "event_ts"), "event_ts", first, last)
        ids_there = landed.column("event_id").to_pylist()
        for place in (place for place, event_id in enumerate(ids_there) if event_id in ids):
            found.setdefault(ids_there[place], []).append(landed.column("event_ts")[place].as_py())
    return found


def _not_there_yet(lake: Lake, manifest: Manifest, quarantine: Table, refused: Sequence[Refused]) -> list[Refused]:
    """The refused lines that quarantine does not hold already, where they may have been seen before."""
    if not refused or not manifest.goes_over_again:
        return list(refused)
    columns = ("source_object", "source_line", "value")
    version = manifest.table_versions[quarantine.name]
    objects = sorted({each.line.object for each in refused})
    held = lake.find(quarantine, version, columns, {"source_object": objects}).to_pylist()
    there = {tuple(row[name] for name in columns) for row in held}
    return [each for each in refused if (_refused(each)[0], _refused(each)[1], _refused(each)[3]) not in there]


def _refused(each: Refused) -> tuple[str, int, str | None, bytes | None, str, str]:
    line, refusal = each
    value = line.content if refusal.is_kept else None
    return line.object, line.number, refusal.event_type, value, refusal.code, refusal.sentence
