"""The rules that keep streams and tables safe: the source of each, what refuses to break it, and its state now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from engagement_platform.consumers.reader import TooFarBehind, lake_root
from engagement_platform.engine.cursors import CheckpointRefused, CursorStore, StreamCheckpoints
from engagement_platform.engine.job import Stores
from engagement_platform.engine.lease import LeaseUnavailable
from engagement_platform.lake import log
from engagement_platform.lake.contract import Found, Mode, NotAStreamSource, Table
from engagement_platform.lake.engagement import engagement_tables
from engagement_platform.lake.streaming import finished_batch
from engagement_platform.maintenance.guards.foreign_commits import Foreign, foreign_commits
from engagement_platform.maintenance.layout import files
from engagement_platform.maintenance.layout.delta_log import REWRITES
from engagement_platform.maintenance.layout.vacuum import RetentionTooShort
from engagement_platform.pipelines.declarations.declared import declarations
from engagement_platform.pipelines.games.feed import shipped
from engagement_platform.pipelines.profiles.entity import PROFILE
from engagement_platform.pipelines.snapshot import WATERMARK
from engagement_platform.settings import Settings

State = Literal["kept", "broken", "nothing to look at"]
Seen = tuple[State, str]
"""Whether a rule is kept now, and the evidence."""

STREAMING = "Streaming data in and out of Delta Lake, Caveats"
NO_TABLES: Seen = ("nothing to look at", "no tables yet")
HOUR = timedelta(hours=1)


class Rule(NamedTuple):
    """One rule."""

    code: str
    says: str
    source: str
    held_by: str
    """What refuses to break it: an error, or what finds that it was broken."""
    do: str
    """When it is broken."""
    look: Callable[[Looked], Seen]


class Guard(NamedTuple):
    """A rule and its state."""

    rule: Rule
    state: State
    seen: str

    def as_json(self) -> dict[str, object]:
        """All of it by name."""
        rule = self.rule._asdict()
        del rule["look"]
        return {**rule, "state": self.state, "seen": self.seen}


class Looked:
    """What rules look at, each read once."""

    def __init__(self, settings: Settings, stores: Stores) -> None:
        self.settings, self.stores = settings, stores
        self.contracts = tables_of_jobs(settings)

    @cached_property
    def found(self) -> dict[Table, Found]:
        """The tables that exist."""
        described = ((table, log.describe(table.uri(self.settings.lake))) for table in self.contracts)
        return {table: found for table, found in described if found is not None}

    @cached_property
    def foreign(self) -> list[Foreign]:
        """Commits of others in them."""
        # A base is written under its watermark, not under the id of the job that moves changes.
        entities = (PROFILE, *(one.entity for one in declarations(self.settings).entities))
        watermarks = [WATERMARK, *(entity.watermark for entity in entities)]
        return foreign_commits(self.settings, self.stores, list(self.found), watermarks)

    @property
    def mutable(self) -> set[str]:
        """Names of those whose rows change."""
        return {table.name for table in self.found if table.mode is Mode.MUTABLE}


def tables_of_jobs(settings: Settings) -> tuple[Table, ...]:
    """Every table that only jobs of ours write: engagements, profiles, games, and all that is declared.

    Not those of page views, whose commits are Spark's own, nor imported ones, which are their users'.
    Raises EventTypeRefused, DeclarationRefused.
    """
    ours = (*engagement_tables(settings.layout.scheme), PROFILE.changeset, PROFILE.base, *shipped(settings).tables)
    return (*ours, *declarations(settings).written)


def guards(settings: Settings, stores: Stores) -> list[Guard]:
    """Every rule and its state. Reads logs and stores, no data. Raises what these raise."""
    looked = Looked(settings, stores)
    return [Guard(rule, *rule.look(looked)) for rule in RULES]


def broken(found: Sequence[Guard]) -> list[Guard]:
    """Those that are not kept."""
    return [guard for guard in found if guard.state == "broken"]


def _of_tables(looked: Looked, wrong: Sequence[object], right: str) -> Seen:
    return _judged(wrong, right) if looked.found else NO_TABLES


def _judged(wrong: Sequence[object], right: str) -> Seen:
    """Broken with what is wrong, at most three of it by name."""
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return ("broken", "; ".join(map(str, wrong[:3])) + more) if wrong else ("kept", right)


def _sources(looked: Looked) -> Seen:
    streamed = {t: found for t, found in looked.found.items() if t.mode is Mode.APPEND_ONLY}
    wrong = [t.name for t, f in streamed.items() if f.properties.get("delta.appendOnly", "").lower() != "true"]
    right = f"{len(streamed)} tables are append-only"
    return _of_tables(looked, [f"{name} may be changed" for name in wrong], right)


def _writers(looked: Looked) -> Seen:
    wrong = [f for f in looked.foreign if f.table in looked.mutable and f.operation not in REWRITES]
    return _of_tables(looked, wrong, "; ".join(map(str, looked.stores.leases.holders())) or "nobody writes now")


def _optimizes(looked: Looked) -> Seen:
    wrong = [f for f in looked.foreign if f.table in looked.mutable and f.operation in REWRITES]
    return _of_tables(looked, wrong, f"{len(looked.mutable)} mutable tables")


def _known(looked: Looked) -> Seen:
    return _of_tables(looked, looked.foreign, f"every new commit of {len(looked.found)} tables")


def _checkpoints(looked: Looked) -> Seen:
    known = StreamCheckpoints(looked.stores.leases.engine)
    streams = known.all()
    if not streams:
        return "nothing to look at", "no stream was started"
    wrong = []
    for stream, folder in streams.items():
        # Folders elsewhere may be where only Spark can look.
        if "://" in folder:
            continue
        if not Path(folder).is_dir():
            wrong.append(f"the folder {folder} of {stream} is gone, so it would begin again")
        elif known.is_behind(stream, finished_batch(folder)):
            wrong.append(f"the folder {folder} of {stream} is older than batch {known.recorded(stream)}, its last one")
    return _judged(wrong, f"{len(streams)} streams")


def _transactions(looked: Looked) -> Seen:
    key = "delta.setTransactionRetentionDuration"
    wrong = [f"{t.name} forgets after {f.properties[key]}" for t, f in looked.found.items() if key in f.properties]
    return _of_tables(looked, wrong, f"{len(looked.found)} tables")


def _retention(looked: Looked) -> Seen:
    window = looked.settings.maintenance.rollback_window
    wrong = []
    for table, found in looked.found.items():
        kept = files.retention(found.properties)
        if kept is None:
            wrong.append(f"{table.name} keeps {found.properties[files.RETENTION]!r}, which cannot be read")
        elif kept < window:
            hours, wanted = kept / HOUR, window / HOUR
            wrong.append(f"{table.name} keeps {hours:.0f} hours, and the rollback window has {wanted:.0f}")
    cursors, root = CursorStore(looked.stores.leases.engine), lake_root(looked.settings.lake)
    readers = [*cursors.all(root), *cursors.below(root)]
    return _of_tables(looked, wrong, f"{len(looked.found)} tables, {len(readers)} consumers")


def _driver(looked: Looked) -> Seen:
    if "://" not in looked.settings.lake:
        return "nothing to look at", "the lake is on this machine"
    endpoint = looked.settings.spark.endpoint
    return _judged([] if endpoint else ["spark.remote is not set"], f"all runs use {endpoint}")


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
        "Stop whatever runs OPTIMIZE there; maintenance does it.",
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
        CheckpointRefused.__name__,
        "Put the folder back, or let the stream begin anew (engagement-platform consumers --forget-stream NAME).",
        _checkpoints,
    ),
    Rule(
        "transactions_kept",
        "Tables remember which batch wrote last, so that a replay adds nothing.",
        "Delta protocol, transaction identifiers",
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
