"""How mutation requests are judged and moved."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field

from engagement_platform.settings.section import Section

ApplyStrategy = Literal["auto", "merge", "deletion_vectors", "overwrite"]


class MutationSettings(Section):
    apply: ApplyStrategy = Field(
        default="auto",
        description="How `rematerialize-aliases` moves what is pending into the Data Table: `merge` (copy on write), "
        "`deletion_vectors` (the same, rows marked instead of files rewritten), `overwrite` (the whole table) or "
        "`auto` (overwrite where half of the rows change, otherwise merge).",
    )
    max_pending: timedelta = Field(
        default=timedelta(minutes=10),
        description="How long a change may wait before it is moved into the Data Table; the view shows it at once.",
    )
    max_edges_per_group: int = Field(
        default=200_000,
        ge=1,
        description="Requests that one task follows. An organization with more is split into connected components by "
        "GraphFrames first.",
    )
    max_lateness: timedelta = Field(
        default=timedelta(days=7),
        description="A request whose execution_ts is further back than this when it was produced (its Kafka timestamp) "
        "goes to quarantine as `too_late`; when it is read plays no part. Deleted rows are kept hidden until every "
        "request that may bring them back was read.",
    )
    max_disorder: timedelta = Field(
        default=timedelta(days=1),
        ge=timedelta(0),
        description="How much older a request's Kafka timestamp may be than the record before it on its partition, or "
        "than the moment at which the broker gets it: clocks of producers, retries, spools, mirrors that keep the "
        "original time. Deleted rows are purged so much later, and a request that is held back for longer may come too "
        "late to bring one back.",
    )
