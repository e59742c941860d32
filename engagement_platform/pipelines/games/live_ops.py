"""Judges the minutes of games that are complete, and tells of what is wrong.

Figures are counted by each batch of game events (`counting`, `live_ops_store`); here they are held against a baseline.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Event

from engagement_platform.alerting.alerts import Alerts
from engagement_platform.alerting.model import Alert, Severity, without_links
from engagement_platform.engine.database import open_engine, utc_now
from engagement_platform.errors import require
from engagement_platform.pipelines.games.baseline import Baseline, fit_baseline
from engagement_platform.pipelines.games.detection import LEVEL_MINUTES, SILENCE, WINDOWS, Finding, findings
from engagement_platform.pipelines.games.figures import MINUTE, grids, minute_number, moment_of
from engagement_platform.pipelines.games.live_ops_store import KEPT, LiveOpsStore
from engagement_platform.settings import Settings

SOURCE = "live-ops"
JUDGING = "Judging the figures of games"
FIGURES = "figures"
HISTORY = timedelta(weeks=4)
# What went on for longer than a day is how the game does now.
JUDGED = timedelta(days=1)
OVER = {
    SILENCE: "Events come again, or by now the game is expected to be silent at this hour.",
    FIGURES: "Its figures are what is expected by now.",
}
# What came before, by which a level is known.
_LEAD = (LEVEL_MINUTES + max(WINDOWS) + 1) * MINUTE
_NAME = re.compile(r"(?!.*\.[^\W\d_])[\w .+-]{1,64}")
"""Names of changes that an alert shows: receivers make links and calls for attention of other texts."""


@dataclass(frozen=True)
class Judged:
    """What one run found."""

    until: datetime | None
    """Minutes before it were judged; None without any event."""
    games: tuple[str, ...]
    """Games that were judged: those with two days of history or more."""
    standing: tuple[Finding, ...]
    """What is wrong at that time."""


class LiveOpsJob:
    """Judges the games of one database. clock: for `live_ops.patience` only. Raises StoresUnavailable, ExtraMissing."""

    def __init__(self, settings: Settings, *, clock: Callable[[], datetime] = utc_now) -> None:
        # Not when the first game has two days of figures: who starts it is still looking now.
        require("liveops", JUDGING)
        self._settings, self._clock = settings, clock
        engine = open_engine(settings.store_url)
        self._baseline: tuple[datetime, Baseline] | None = None
        self._last: Judged | None = None
        self._forgotten: datetime | None = None
        self.store = LiveOpsStore(engine)
        self.alerts = Alerts(engine, settings.alerting)

    def run(self) -> Judged:
        """Judge the minutes that are complete; alerts are sent by `alerts.deliver()`."""
        until = self._complete_until()
        if self._last is not None and self._last.until == until:
            # Nothing more can be judged before the next minute is over.
            return self._last
        games, standing = ((), ()) if until is None else self._judged(until)
        newest = self.store.newest()
        if newest is not None and (hour := min(newest).replace(minute=0, second=0, microsecond=0)) != self._forgotten:
            # By data time: events of last year are not old to a lake of last year. Once an hour, since it goes over
            # everybody's sessions while nothing else can write to the stores.
            self.store.forget(min(newest) - self._settings.live_ops.players_open, min(newest) - KEPT)
            self._forgotten = hour
        self._last = Judged(until, games, standing)
        return self._last

    def follow(self, stop: Event, on_run: Callable[[Judged], None]) -> None:
        """Run again and again until `stop` is set, and send what is due beside it."""
        while not stop.is_set():
            on_run(self.run())
            self.alerts.deliver_in_background()
            stop.wait(self._settings.live_ops.poll.total_seconds())

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
        games = tuple(baseline)
        if not games:
            return (), ()
        first = until - JUDGED - _LEAD
        shown = grids(self.store.figures(first, until), first, until, games)
        changes = self.store.changes(first)
        found = [
            one
            for one in findings(baseline, shown, changes, self._settings.live_ops)
            if one.what == SILENCE or one.detected_at > first + _LEAD
        ]
        tell(self.alerts, games, found)
        return games, tuple(one for one in found if one.over_at is None)

    def _expected(self, midnight: datetime) -> Baseline:
        """From the weeks before a day, fitted once for each day: 1.4 s a game."""
        if self._baseline is None or self._baseline[0] != midnight:
            history = self.store.figures(midnight - HISTORY, midnight)
            self._baseline = midnight, fit_baseline(history, midnight)
        return self._baseline[1]


def tell(alerts: Alerts, games: Iterable[str], findings: Iterable[Finding]) -> None:
    """Raise what stands and take back what is over, for games that were judged. Never raises, sends nothing itself.

    One alert a game for its silence, one for all its figures: what players leave, they leave in all figures at once.
    """
    standing = defaultdict[str, list[Finding]](list)
    for one in findings:
        if one.over_at is None:
            standing[_key(one.game, SILENCE if one.what == SILENCE else FIGURES)].append(one)
    for key, found in sorted(standing.items()):
        alerts.raised(_alert(key, found))
    for game in games:
        for kind, words in OVER.items():
            if (key := _key(game, kind)) not in standing:
                alerts.recovered(key, words)


def _key(game: str, kind: str) -> str:
    return f"{SOURCE}/{game}/{kind}"


def _alert(key: str, findings: Sequence[Finding]) -> Alert:
    """The alert for what stands about one key; at least one finding."""
    first = min(findings, key=lambda finding: finding.detected_at)
    game, labels = without_links(first.game), {"game": first.game}
    if first.what == SILENCE:
        title = f"{game} is silent"
        body = (
            "No event came for longer than this game is ever quiet at this hour. Look at its servers and at ingestion."
        )
    else:
        moved = ", ".join(f"{one.what} {one.ratio - 1:+.0%}" for one in findings)
        title, body = f"{game}: {moved}", f"Against what is expected of this hour: {moved}."
        if first.change and _NAME.fullmatch(first.change):
            title += f" after {first.change}"
            body += f" It began after the change {first.change}; consider taking it back."
            labels["change"] = first.change
        elif first.change:
            title += " after a change"
            body += " It began after a change, which `engagement-platform live-ops run --json` names."
    return Alert(key, Severity.ERROR, title, body, SOURCE, first.detected_at - timedelta(minutes=1), labels)
