"""Every rule with its source, what holds it, and its state now. The capabilities of the engines are `capabilities`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Literal

from engagement_platform.consumers.reader import TooFarBehind, lake_root
from engagement_platform.engine.cursors import (
    CheckpointBehind,
    CheckpointChanged,
    CheckpointTaken,
    CursorStore,
    StreamCheckpoints,
)
from engagement_platform.engine.job import Stores
from engagement_platform.engine.lease import LeaseUnavailable
from engagement_platform.errors import PlatformError
from engagement_platform.guards.foreign_commits import REWRITES, Foreign, foreign_commits
from engagement_platform.lake import log
from engagement_platform.lake.contract import Found, Mode, NotAStreamSource, Table
from engagement_platform.lake.engagement import engagement_tables
from engagement_platform.lake.streaming import finished_batch
from engagement_platform.layout import files
from engagement_platform.layout.vacuum import RetentionTooShort
from engagement_platform.pipelines.declarations.declared import declarations
from engagement_platform.pipelines.games.feed import shipped
from engagement_platform.pipelines.profiles.entity import PROFILE, Entity
from engagement_platform.pipelines.snapshot import WATERMARK
from engagement_platform.settings import Settings

State = Literal["kept", "broken", "nothing to look at"]

STREAMING = "Streaming data in and out of Delta Lake, Caveats"
PROTOCOL = "Delta protocol, transaction identifiers"
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Verdict:
    """Whether a rule is kept now, and by what one sees it."""

    state: State
    seen: str


@dataclass(frozen=True)
class Rule:
    """One rule."""

    code: str
    says: str
    source: str
    held_by: str
    """What refuses to break it: an error, or what finds that it was broken."""
    do: str
    """When it is broken."""
    look: Callable[[Looked], Verdict]


@dataclass(frozen=True)
class Guard:
    """A rule and its state."""

    rule: Rule
    verdict: Verdict

    def as_json(self) -> dict[str, object]:
        """All of it by name."""
        rule = {name: value for name, value in vars(self.rule).items() if name != "look"}
        return {**rule, "state": self.verdict.state, "seen": self.verdict.seen}


class GuardsUnreadable(PlatformError):
    """A rule could not be looked at."""

    def __init__(self, code: str, error: PlatformError) -> None:
        super().__init__(f"Whether the rule {code} is kept cannot be told: {error}")


class Looked:
    """What rules look at, each read once."""

    def __init__(self, settings: Settings, stores: Stores) -> None:
        self.settings, self.stores = settings, stores
        self.contracts = tables_of_jobs(settings)

    @cached_property
    def found(self) -> dict[Table, Found]:
        described = ((table, log.describe(table.uri(self.settings.lake))) for table in self.contracts)
        return {table: found for table, found in described if found is not None}

    @cached_property
    def foreign(self) -> list[Foreign]:
        # A base is written under its watermark, not under the id of the job that moves changes.
        watermarks = [WATERMARK, *(entity.watermark for entity in entities_of_jobs(self.settings))]
        return foreign_commits(self.settings, self.stores, list(self.found), watermarks)

    @property
    def mutable(self) -> set[str]:
        return {table.name for table in self.found if table.mode is Mode.MUTABLE}


def tables_of_jobs(settings: Settings) -> tuple[Table, ...]:
    """Every table that only jobs of ours write: engagements, profiles, games, and all that is declared.

    Not those of page views, whose commits are Spark's own, nor imported ones, which are their users'.
    Raises EventTypeRefused, DeclarationRefused.
    """
    declared = declarations(settings)
    return (
        *engagement_tables(settings.layout.scheme),
        *(table for entity in entities_of_jobs(settings) for table in (entity.changeset, entity.base)),
        *(table for feed in (shipped(settings), *declared.feeds) for table in feed.tables),
        *(table for stream in declared.streams for table in (stream.table, stream.quarantine)),
    )  # fmt: skip


def entities_of_jobs(settings: Settings) -> tuple[Entity, ...]:
    """The entity that ships and those that are declared. Raises DeclarationRefused."""
    return (PROFILE, *(one.entity for one in declarations(settings).entities))


def guards(settings: Settings, stores: Stores) -> list[Guard]:
    """Every rule as it stands. Reads logs and stores, no data. Raises GuardsUnreadable."""
    looked, found = Looked(settings, stores), []
    for rule in RULES:
        try:
            found.append(Guard(rule, rule.look(looked)))
        except PlatformError as error:
            raise GuardsUnreadable(rule.code, error) from error
    return found


def broken(found: Sequence[Guard]) -> list[Guard]:
    """Those that are not kept."""
    return [guard for guard in found if guard.verdict.state == "broken"]


NO_TABLES = Verdict("nothing to look at", "no tables yet")


def _judged(wrong: Sequence[object], right: str) -> Verdict:
    """Broken with what is wrong, at most three of it by name."""
    if not wrong:
        return Verdict("kept", right)
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return Verdict("broken", "; ".join(map(str, wrong[:3])) + more)


def _sources(looked: Looked) -> Verdict:
    streamed = {t: found for t, found in looked.found.items() if t.mode is Mode.APPEND_ONLY}
    wrong = [t.name for t, f in streamed.items() if f.properties.get("delta.appendOnly", "").lower() != "true"]
    right = f"{len(streamed)} tables are append-only"
    return _judged([f"{name} may be changed" for name in wrong], right) if streamed else NO_TABLES


def _writers(looked: Looked) -> Verdict:
    wrong = [f for f in looked.foreign if f.table in looked.mutable and f.operation not in REWRITES]
    holders = "; ".join(str(holder) for holder in looked.stores.leases.holders())
    return _judged(wrong, holders or "nobody writes now") if looked.mutable else NO_TABLES


def _optimizes(looked: Looked) -> Verdict:
    wrong = [f for f in looked.foreign if f.table in looked.mutable and f.operation in REWRITES]
    return _judged(wrong, f"{len(looked.mutable)} mutable tables") if looked.mutable else NO_TABLES


def _known(looked: Looked) -> Verdict:
    right = f"every new commit of {len(looked.found)} tables"
    return _judged(looked.foreign, right) if looked.found else NO_TABLES


def _checkpoints(looked: Looked) -> Verdict:
    known = StreamCheckpoints(looked.stores.leases.engine)
    streams = known.all()
    if not streams:
        return Verdict("nothing to look at", "no stream was started")
    # Folders elsewhere may be where only Spark can look.
    wrong = [_checkpoint_wrong(known, stream, folder) for stream, folder in streams.items() if "://" not in folder]
    return _judged([why for why in wrong if why], f"{len(streams)} streams")


def _checkpoint_wrong(known: StreamCheckpoints, stream: str, folder: str) -> str | None:
    if not Path(folder).is_dir():
        return f"the folder {folder} of {stream} is gone, so it would begin again"
    try:
        known.refuse_behind(stream, folder, finished_batch(folder))
    except CheckpointBehind as behind:
        return f"the folder {folder} of {stream} is older than batch {behind.recorded}, which it has finished"
    return None


def _transactions(looked: Looked) -> Verdict:
    key = "delta.setTransactionRetentionDuration"
    wrong = [f"{t.name} forgets after {f.properties[key]}" for t, f in looked.found.items() if key in f.properties]
    return _judged(wrong, f"{len(looked.found)} tables") if looked.found else NO_TABLES


def _retention(looked: Looked) -> Verdict:
    window = looked.settings.maintenance.rollback_window
    wrong = [
        f"{table.name} keeps {kept / HOUR:.0f} hours, and the rollback window has {window / HOUR:.0f}"
        for table, found in looked.found.items()
        if (kept := files.retention(found.properties)) < window
    ]
    cursors, root = CursorStore(looked.stores.leases.engine), lake_root(looked.settings.lake)
    readers = [*cursors.all(root), *cursors.below(root)]
    right = f"{len(looked.found)} tables, {len(readers)} consumers"
    return _judged(wrong, right) if looked.found else NO_TABLES


def _driver(looked: Looked) -> Verdict:
    if "://" not in looked.settings.lake:
        return Verdict("nothing to look at", "the lake is on this machine")
    if looked.settings.spark.remote is None:
        return Verdict("broken", "spark.remote is not set")
    return Verdict("kept", f"all runs use {looked.settings.spark.remote}")


RULES = (
    Rule(
        "stream_source",
        "Only append-only tables are streamed from.",
        STREAMING,
        f"{NotAStreamSource.__name__}; delta.appendOnly on the table",
        "Set delta.appendOnly to true on the table.",
        _sources,
    ),
    Rule(
        "one_writer",
        "While a writer that changes rows is at work, no other writer is.",
        STREAMING,
        f"{LeaseUnavailable.__name__}: a lease for each mutable table",
        "Stop the writer that takes no lease, then run engagement-platform verify.",
        _writers,
    ),
    Rule(
        "no_external_optimize",
        "Tables whose rows change are optimized by us only, under their lease.",
        STREAMING,
        "the lease, for which maintenance waits; found in the log when done elsewhere",
        "Stop whoever runs OPTIMIZE there; maintenance does it.",
        _optimizes,
    ),
    Rule(
        "known_writer",
        "Every commit was made by a job of ours.",
        STREAMING,
        "found in the log",
        "Find out who wrote and stop it, then run engagement-platform verify.",
        _known,
    ),
    Rule(
        "own_checkpoint",
        "A checkpoint folder belongs to one stream, and a stream keeps its folder.",
        STREAMING,
        f"{CheckpointTaken.__name__}, {CheckpointChanged.__name__}, {CheckpointBehind.__name__}",
        "Put the folder back, or let the stream begin anew (engagement-platform consumers --forget-stream NAME).",
        _checkpoints,
    ),
    Rule(
        "transactions_kept",
        "Tables remember which batch wrote last, so that a replay adds nothing.",
        PROTOCOL,
        "found in the table's properties",
        "Unset delta.setTransactionRetentionDuration on the table.",
        _transactions,
    ),
    Rule(
        "files_kept",
        "Removed files stay for the rollback window, and until slow consumers have read on.",
        "Streaming data in and out of Delta Lake, Optimize",
        f"{RetentionTooShort.__name__}, {TooFarBehind.__name__}",
        "Lengthen delta.deletedFileRetentionDuration of the table: VACUUM from outside goes by it.",
        _retention,
    ),
    Rule(
        "one_driver",
        "Tables on S3 are written through one Spark driver.",
        "Delta Lake documentation, Storage configuration, Amazon S3",
        "spark.remote: one driver for all runs",
        "Set spark.remote; without it every run has a driver of its own.",
        _driver,
    ),
)
"""Every rule, in the order in which they are shown."""
