"""Which pipelines run, and what they do with messages: batches, decoding, mutations, profiles, page views."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

from pydantic import Field, field_validator

from engagement_platform.settings.section import GIB, Duration, Section


class PipelinesSettings(Section):
    """Which pipelines run. One that is off has no assets, checks, sensors, services and sample traffic; its tables
    stay, and its jobs can be run by hand."""

    engagements: bool = True
    """Engagements, mutation requests, names and their notifications."""
    profiles: bool = True
    """Profiles by merge on read."""
    games: bool = True
    """Events of games: queue and bucket, ingest server, tables and live operations."""
    page_views: bool = True
    """Page views, sessions and days: three streams, run every five minutes while views wait. Without the topic they
    rest."""

    def has(self, table: str) -> bool:
        """Whether the pipeline that fills a table of this name is on; always for tables of no pipeline here."""
        names = {"engagement": self.engagements, "profile": self.profiles, "game": self.games, "view": self.page_views}
        return names.get(table.partition("/")[0], True)


class PageViewsSettings(Section):
    """Page views, sessions of them, and days of those."""

    topic: str = "page-views"
    """Topic of page views."""
    session_gap: timedelta = Field(timedelta(minutes=30), gt=timedelta(0))
    """A longer pause between two views of a user begins a new session. Do not change it while the streams have a
    checkpoint: what is open is kept under the old one."""
    max_late: Duration = timedelta(hours=1)
    """Views that come so long after newer ones still count; later ones are counted as late and stand in view/page_view
    only. Every session is written that much later."""
    max_ahead: Duration = timedelta(minutes=5)
    """Views further ahead of when they were produced are quarantined as time_out_of_range; never more than `max_late`,
    so that no view makes those late that others send now."""


class BatchSettings(Section):
    max_records: int = Field(200_000, ge=1)
    """Most messages in one batch. Above it the backlog becomes more batches; memory and time to redo after a crash grow
    with it, while the fixed cost of a batch (about 4 s on 2 cores) is paid less often."""
    max_bytes: int = Field(256 * 1024 * 1024, ge=1)
    """Most message bytes in one batch, estimated from the sizes of the messages before it."""


class DrainSettings(Section):
    idle_timeout: Duration = timedelta(seconds=20)
    """How long a run watches an idle source before it ends. A new run costs 8 to 11 s, so a timeout much shorter than
    the pause between bursts pays that again and again."""
    poll: Duration = timedelta(seconds=1)
    """How often an idle run asks for new messages."""
    min_batch_interval: Duration = timedelta(seconds=10)
    """A batch of a run in Dagster begins at the earliest this long after the one before of its job, unless that one was
    full; a run of one job also rests as long as that one took, up to the interval. Announcements have 30 s at
    least, game events a minute. A batch of 200 rows costs nearly what one of 20,000 does, so without it a quiet
    topic takes the machine from a busy one: seen were 23 batches of requests beside 5 of engagements (2 cores)."""
    max_duration: timedelta = Field(timedelta(minutes=30), gt=timedelta(0))
    """A run ends after this long even when more is waiting, so that runs stay small enough to read in the UI; the
    sensor starts the next one. It ends after a batch, too, when a run that a person launched waits in the queue for its
    pool, such as a backfill."""


MessageField = Literal[
    "attributes", "channel", "engagement_date_from", "engagement_date_to", "engagement_id", "engagement_ts",
    "execution_ts", "from_id", "name", "operation", "organization_id", "person_id", "person_name", "request_id",
    "subject", "to_id", "type", "version",
]  # fmt: skip
"""Fields of engagements and of mutation requests."""


class DecodingSettings(Section):
    max_bytes: int = Field(1024 * 1024, ge=2)
    """Larger messages are quarantined as too_large."""
    max_depth: int = Field(32, ge=1, le=200)
    """Deeper nested messages are quarantined as too_deep."""
    max_id_length: int = Field(256, ge=1, le=256)
    """Longest id, in Unicode code points."""
    earliest: datetime = datetime(2000, 1, 1, tzinfo=UTC)
    """Times before it are quarantined as time_out_of_range."""
    max_ahead: Duration = timedelta(days=1)
    """Times further ahead of ingestion are quarantined as time_out_of_range."""
    unknown_fields: Literal["ignore", "quarantine"] = "ignore"
    """What happens to a message with fields nobody declared: `ignore` counts them."""
    aliases: dict[str, MessageField] = Field({})
    """How producers spell fields of engagements and mutation requests otherwise, such as {"OrgId": "organization_id"}.
    A message that has both goes to quarantine as duplicate_key."""

    @field_validator("aliases")
    @classmethod
    def _no_field_is_an_alias(cls, aliases: dict[str, MessageField]) -> dict[str, MessageField]:
        if fields := sorted(aliases.keys() & set(get_args(MessageField))):
            raise ValueError(f"{', '.join(fields)}: a field of engagements or requests cannot be another spelling")
        return aliases


ApplyStrategy = Literal["auto", "merge", "deletion_vectors", "overwrite"]


class MutationSettings(Section):
    apply: ApplyStrategy = "auto"
    """How `rematerialize-aliases` moves what is pending into the Data Table: `merge` (copy on write),
    `deletion_vectors` (the same, rows marked instead of files rewritten), `overwrite` (the whole table) or `auto`
    (overwrite where half of the rows change, otherwise merge)."""
    max_pending: Duration = timedelta(minutes=10)
    """How long a change may wait before it is moved into the Data Table; the view shows it at once."""
    max_edges_per_group: int = Field(200_000, ge=1)
    """Requests that one task follows. An organization with more is split into connected components by GraphFrames
    first."""
    max_lateness: Duration = timedelta(days=7)
    """A request whose execution_ts is further back than this when it was produced (its Kafka timestamp) goes to
    quarantine as `too_late`; when it is read plays no part. Deleted rows are kept hidden until every request that may
    bring them back was read."""
    max_disorder: Duration = timedelta(days=1)
    """How much older a request's Kafka timestamp may be than the record before it on its partition, or than the moment
    at which the broker gets it: clocks of producers, retries, spools, mirrors that keep the original time. Deleted rows
    are purged so much later, and a request that is held back for longer may come too late to bring one back."""


ViewStrategy = Literal["auto", "double_rank_over", "full_outer_join", "left_join_anti_join", "left_join_union_inserts"]
RematerializeMethod = Literal["auto", "merge", "overwrite", "replace_where"]
UnknownUpdate = Literal["upsert", "ignore", "quarantine"]


class MergeOnReadSettings(Section):
    """How partial updates of profiles are taken in and read."""

    unknown_update: UnknownUpdate = "upsert"
    """An UPDATE of a profile that nobody has inserted: `upsert` makes a row, `ignore` keeps it out of sight until an
    INSERT comes, `quarantine` refuses it (looks the ids up in the tables, which costs time)."""
    inserts_are_new: bool = False
    """Producers promise that an INSERT never names a profile that is known. Checked as changes land (`insert_not_new`
    in quarantine); only then `left_join_union_inserts` may be used."""
    view: ViewStrategy = "auto"
    """How base and changeset are joined. `auto`: `left_join_union_inserts` where it is valid, else
    `left_join_anti_join`, and `full_outer_join` when the changes are too many to broadcast."""
    broadcast_max_rows: int = Field(2_800_000, ge=0)
    """Most folded changes that are broadcast. The figure of the write-up: 0.95 GiB at 364 bytes a row; exactly so
    many are broadcast."""
    broadcast_row_bytes: int = Field(364, ge=1)
    """Bytes that a folded change is taken to have."""
    broadcast_budget_bytes: int = Field(1 * GIB, ge=0)
    """Most bytes of folded changes that are broadcast."""


class RematerializeSettings(Section):
    """How and when pending changes are moved into the base."""

    method: RematerializeMethod = "overwrite"
    """`overwrite` writes the whole base anew (best without partitions), `merge` rewrites the files that changes touch,
    `replace_where` the partitions that they touch (needs a partitioned entity), `auto` overwrites where half as many
    changes wait as there are rows and merges otherwise."""
    cadence: Duration = timedelta(minutes=10)
    """Time between two rematerializations while changes wait. Often enough that reading through what waits costs no
    more than writing the base: `make bench-merge-on-read` measures both."""
    max_pending_rows: int = Field(500_000, ge=1)
    """More pending changes than this are moved at once, whatever the cadence. Far below
    `merge_on_read.broadcast_max_rows`, above which joins shuffle the base."""
    max_view_latency: Duration = timedelta(seconds=10)
    """When changes that wait make reading one profile longer by more than this, against the base alone, they are
    moved at once."""
    tombstone_retention: timedelta | None = Field(None, ge=timedelta(0))
    """Deleted profiles are forgotten so long after their DELETE landed. A change from before the DELETE that comes
    later than that makes the profile anew. Not set: tombstones are kept."""
