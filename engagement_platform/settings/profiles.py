"""How profiles are read and rematerialized."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field

from engagement_platform.settings.section import Section

_GIB = 1024**3

ViewStrategy = Literal["auto", "double_rank_over", "full_outer_join", "left_join_anti_join", "left_join_union_inserts"]
RematerializeMethod = Literal["auto", "merge", "overwrite", "replace_where"]
UnknownUpdate = Literal["upsert", "ignore", "quarantine"]


class MergeOnReadSettings(Section):
    """How partial updates of profiles are taken in and read."""

    unknown_update: UnknownUpdate = Field(
        default="upsert",
        description="An UPDATE of a profile that nobody has inserted: `upsert` makes a row, `ignore` keeps it out of "
        "sight until an INSERT comes, `quarantine` refuses it (looks the ids up in the tables, which costs time).",
    )
    inserts_are_new: bool = Field(
        default=False,
        description="Producers promise that an INSERT never names a profile that is known. Checked as changes land "
        "(`insert_not_new` in quarantine); only then `left_join_union_inserts` may be used.",
    )
    view: ViewStrategy = Field(
        default="auto",
        description="How base and changeset are joined. `auto`: `left_join_union_inserts` where it is valid, else "
        "`left_join_anti_join`, and `full_outer_join` when the changes are too many to broadcast.",
    )
    broadcast_max_rows: int = Field(
        default=2_800_000,
        ge=0,
        description="Most folded changes that are broadcast. The source's figure: 1 GiB at 364 bytes a row, rounded "
        "down; exactly so many are broadcast.",
    )
    broadcast_row_bytes: int = Field(default=364, ge=1, description="Bytes that a folded change is taken to have.")
    broadcast_budget_bytes: int = Field(
        default=1 * _GIB, ge=0, description="Most bytes of folded changes that are broadcast."
    )


class RematerializeSettings(Section):
    """How and when pending changes are moved into the base."""

    method: RematerializeMethod = Field(
        default="overwrite",
        description="`overwrite` writes the whole base anew (best without partitions), `merge` rewrites the files that "
        "changes touch, `replace_where` the partitions that they touch (needs a partitioned entity), `auto` overwrites "
        "where half as many changes wait as there are rows and merges otherwise.",
    )
    cadence: timedelta = Field(
        default=timedelta(minutes=10),
        description="Time between two rematerializations while changes wait. Often enough that reading through what "
        "waits costs no more than writing the base: `make bench-merge-on-read` measures both.",
    )
    max_pending_rows: int = Field(
        default=500_000,
        ge=1,
        description="More pending changes than this are moved at once, whatever the cadence. Far below "
        "`merge_on_read.broadcast_max_rows`, above which joins shuffle the base.",
    )
    max_view_latency: timedelta = Field(
        default=timedelta(seconds=10),
        description="When reading one profile through the view took longer than this, changes are moved at once.",
    )
    tombstone_retention: timedelta | None = Field(
        default=None,
        description="Deleted profiles are forgotten so long after their DELETE landed. A change from before the DELETE "
        "that comes later than that makes the profile anew. Not set: tombstones are kept.",
    )
