"""Count what was added to the tables of games, judge the minutes that are complete, tell of what is wrong.

Exactly once: a batch and the place after it are one transaction, and the cursor follows; what comes again is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Event

import pyarrow as pa

from engagement_platform.alerting.alerts import Alerts
from engagement_platform.consumers.appended import Appends, cursor_root
from engagement_platform.consumers.changes import MAX_ROWS, lake_root
from engagement_platform.engine.cursors import CursorStore
from engagement_platform.engine.database import open_engine
from engagement_platform.lake import log
from engagement_platform.live_ops.baseline import Baseline
from engagement_platform.live_ops.detect import LEVEL_MINUTES, SILENCE, WINDOWS, Finding, findings
from engagement_platform.live_ops.figures import MINUTE, grids, minute_number, moment_of
from engagement_platform.live_ops.minutes import KEPT, Batch, LiveOpsStore
from engagement_platform.live_ops.players import PlayerFeatures
from engagement_platform.live_ops.telling import tell
from engagement_platform.live_ops_job.events import batch_of, withheld
from engagement_platform.pii.tombstones import StoredTombstones
from engagement_platform.pipelines.games.event_type import EventType
from engagement_platform.pipelines.games.registry import registry
from engagement_platform.settings import Settings

CONSUMER = "live-ops"
"""Name of the job among the consumers of each table."""

HISTORY = timedelta(weeks=4)
# What went on for longer than a day is how the game does now.
JUDGED = timedelta(days=1)
# Batches after which the cursor follows; it also does at the end of each table.
_BATCHES_A_MOVE = 16
# What came before, by which a level is known.
_LEAD = (LEVEL_MINUTES + max(WINDOWS) + 1) * MINUTE


@dataclass(frozen=True)
class Counted:
    """What one run did."""

    rows: int
    """Events that were new."""
    tables: int
    """Tables that there are."""
    until: datetime | None
    """Minutes before it were judged; None without any event."""
    games: tuple[str, ...]
    """Games that were judged: those with two days of history or more."""
    standing: tuple[Finding, ...]
    """What is wrong at that time."""


def utc_now() -> datetime:
    """This machine's clock, UTC."""
    return datetime.now(UTC)


class LiveOpsJob:
    """One reader of the tables of games of one lake. clock: for `live_ops.patience` only.

    Raises StoresUnavailable, EventTypeRefused.
    """

    def __init__(
        self, settings: Settings, *, max_rows: int = MAX_ROWS, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._settings, self._max_rows, self._clock = settings, max_rows, clock
        self._engine = open_engine(settings.store_url)
        self._types: Mapping[str, EventType] = registry(settings.games.declarations)
        self._tombstones = StoredTombstones(settings)
        # Now, since its tables cannot be made within a transaction of ours.
        self._tombstones.keyring.has_tombstones()
        self._readers: dict[str, Appends] = {}
        self._baseline: tuple[datetime, Baseline] | None = None
        self._last: Counted | None = None
        self.store, self.features = LiveOpsStore(self._engine), PlayerFeatures(self._engine)
        self.alerts = Alerts(self._engine, settings.alerting)

    def run(self) -> Counted:
        """Count until all tables are read, then judge; messages wait in the outbox until `alerts.deliver()`.

        Raises CursorMoved and what following a table raises; what was counted until then stays counted.
        """
        rows = 0
        while new := self.count():
            rows += new
        until = self._complete_until()
        if self._last is not None and self._last.until == until:
            # Nothing more can be said before the next minute is over.
            return replace(self._last, rows=rows, tables=len(self._readers))
        games, standing = ((), ()) if until is None else self._judged(until)
        if rows and (newest := self.store.newest()) is not None:
            # By data time: events of last year are not old to a lake of last year.
            self.store.close(min(newest) - self._settings.live_ops.players_open)
            self.store.forget_figures(min(newest) - KEPT)
            self.features.forget_sessions(min(newest) - KEPT)
        self._last = Counted(rows, len(self._readers), until, games, standing)
        return self._last

    def follow(self, stop: Event, on_run: Callable[[Counted], None]) -> None:
        """Run again and again until `stop` is set, and send what is due beside it."""
        while not stop.is_set():
            on_run(self.run())
            self.alerts.deliver_in_background()
            stop.wait(self._settings.live_ops.poll.total_seconds())

    def count(self) -> int:
        """Take in what was added to each table; how many rows. Tables are read one after the other, each to its end."""
        rows = 0
        for declared in self._types.values():
            reader = self._reader(declared)
            if reader is None:
                continue
            before = reader.committed
            for number, batch in enumerate(reader, 1):
                rows += self.store.take(
                    declared.table.name,
                    (before.version, before.rows),
                    (batch.position.version, batch.position.rows),
                    batch.rows.num_rows,
                    partial(self._counted, declared, batch.rows),
                )
                before = batch.position
                # What comes again is known. Moving the cursor takes about as long as taking in a batch of some rows.
                if number % _BATCHES_A_MOVE == 0:
                    reader.commit()
            # Past commits without new rows, such as those of OPTIMIZE.
            reader.commit()
        return rows

    def _counted(self, declared: EventType, rows: pa.Table, skip: int) -> Batch:
        # Within the transaction that takes the batch in: an erasure comes before it and is seen, or removes it after.
        return batch_of(declared, withheld(rows, self._tombstones), skip)

    def _reader(self, declared: EventType) -> Appends | None:
        name = declared.table.name
        if name not in self._readers:
            if log.version(declared.table.uri(self._settings.lake)) is None:
                return None
            # Alarms go on after a restore, though what it undid stays counted in the figures of its minutes.
            self._readers[name] = Appends(
                self._settings.lake, name, name=CONSUMER, max_rows=self._max_rows,
                store_url=self._settings.store_url, erases=True, past_restores=True,
            )  # fmt: skip
        return self._readers[name]

    def _complete_until(self) -> datetime | None:
        """Minutes before this have all their events, as far as can be known.

        By when events were ingested, not by their own times alone: devices' clocks are up to an hour ahead. By the
        newest event, too: while ingestion catches up, events of the past are still coming.
        """
        newest = self.store.newest()
        if newest is None:
            return None
        settings, (ingested, event) = self._settings.live_ops, newest
        by_events, by_clock = min(ingested - settings.delay, event), self._clock() - settings.patience
        return moment_of(minute_number(max(by_events, by_clock)))

    def _judged(self, until: datetime) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
        baseline = self._expected(until.replace(hour=0, minute=0))
        games = tuple(sorted(baseline.games))
        if not games:
            return (), ()
        first = until - JUDGED - _LEAD
        shown = grids(self.store.figures(first, until), first, until, games)
        changes = self.store.changes(first)
        found = [
            one
            for one in findings(baseline, shown, changes, self._settings.live_ops)
            if one.what == SILENCE or one.told_at > first + _LEAD
        ]
        tell(self.alerts, games, found)
        return games, tuple(one for one in found if one.over_at is None)

    def _expected(self, midnight: datetime) -> Baseline:
        """From the weeks before a day, fitted once for each day: 1.4 s a game."""
        if self._baseline is None or self._baseline[0] != midnight:
            history = self.store.figures(midnight - HISTORY, midnight)
            self._baseline = midnight, Baseline.fit(history, midnight)
        return self._baseline[1]


def reset(settings: Settings) -> None:
    """Forget what was counted, and the cursors: the next run counts every table from its beginning.

    Not while a job runs. Raises StoresUnavailable.
    """
    engine = open_engine(settings.store_url)
    cursors, lake = CursorStore(engine), lake_root(settings.lake)
    for declared in registry(settings.games.declarations).values():
        cursors.forget(cursor_root(lake, declared.table.name), CONSUMER)
    LiveOpsStore(engine).reset()
