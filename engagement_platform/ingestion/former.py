"""What former requests make of the engagements of a large batch, in Spark: identities, patches, names.

The same as `few` does in this process. Only what a batch shares with patches or moved names comes into this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.model import Manifest
from engagement_platform.ingestion.settle import COORDINATES, ID
from engagement_platform.lake import log
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, AMENDMENT, ORIGINAL, PENDING
from engagement_platform.lake.lake import Lake, any_of
from engagement_platform.mutation.accepted import Accepted, as_content, as_struct, pinned
from engagement_platform.mutation.content import patched
from engagement_platform.mutation.identify import identified

CONTENT = ("type", "channel", "subject", "attributes")


@dataclass(frozen=True)
class Former:
    """Accepted requests of the organizations of a batch, as pinned."""

    lake: Lake
    manifest: Manifest
    organizations: Sequence[str]

    @cached_property
    def accepted(self) -> Accepted:
        """The same, for what comes into this process."""
        unbounded = self.lake.settings.mutation.model_copy(update={"light_edges": 10**12})
        return Accepted(self.lake, self.manifest, self.organizations, unbounded)

    def has(self, table: Table) -> bool:
        """Whether a log holds anything of these organizations; where it is not partitioned by them, anything."""
        held = log.stored(self.lake.uri(table), pinned(self.manifest, table), self.organizations)
        return any(stored.files for stored in held.values())

    @cached_property
    def has_edges(self) -> bool:
        """Whether any identity was ever moved in these organizations."""
        return self.has(ALIAS)

    @cached_property
    def has_patches(self) -> bool:
        """Whether anything was ever patched or renamed in these organizations."""
        return self.has(AMENDMENT)

    @cached_property
    def is_pending(self) -> bool:
        """Whether the Data Table does not show all edges of these organizations yet."""
        return self.has(PENDING) and bool(self.accepted.pending)

    def read(self, table: Table) -> DataFrame:
        """A log of these organizations."""
        rows = self.lake.read(table, pinned(self.manifest, table))
        return rows.where(any_of("organization_id", self.organizations))

    def identified(self, rows: DataFrame, source_person_id: str) -> DataFrame:
        """Rows with `now`, the identity after all edges. source_person_id: the column with what the event said."""
        if not self.has_edges:
            return rows.withColumn("now", F.col(source_person_id))
        of = (
            rows
            if source_person_id == "source_person_id"
            else rows.withColumn("source_person_id", F.col(source_person_id))
        )
        found = identified(of, self.read(ALIAS), engine=self.lake.settings.mutation.resolver)
        return found.select(*rows.columns, "now")

    def unpatched(self, standing: DataFrame) -> DataFrame:
        """Rows of the Data Table with the content that their event said."""
        if not self.has(ORIGINAL):
            return standing
        said = self.read(ORIGINAL).groupBy(*ID, "version").agg(F.first("engagement").alias("said"))
        joined = standing.join(said, [*ID, "version"], "left")
        return joined.withColumn("engagement", F.coalesce("said", "engagement")).drop("said")

    def patched(self, landing: DataFrame) -> pa.Table | None:
        """Contents of landing copies that former patches change; None when there is none.

        In:  landing: COORDINATES, ID, engagement_ts, version and CONTENT. Out: COORDINATES, ID, version, said, patched.
        """
        if not self.has_patches:
            return None
        updates = self.read(AMENDMENT).where("operation = 'UPDATE'").select(*ID).distinct()
        rows = landing.join(updates, list(ID), "left_semi").toArrow().to_pylist()
        patches = self.accepted.patches((row["organization_id"], row["engagement_id"]) for row in rows)
        found: list[Mapping[str, Any]] = []
        for row in rows:
            said = as_content(row)
            content = patched(said, row["engagement_ts"], patches[row["organization_id"], row["engagement_id"]])
            if content != said:
                place = {name: row[name] for name in (*COORDINATES, *ID, "version")}
                found.append({**place, "said": as_struct(said), "patched": as_struct(content)})
        if not found:
            return None
        struct = schema_of(ORIGINAL, "engagement").field("engagement").type
        kinds = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "version": pa.int64()}
        fields = [(name, kinds.get(name, pa.string())) for name in (*COORDINATES, *ID, "version")]
        return pa.Table.from_pylist(found, schema=pa.schema([*fields, ("said", struct), ("patched", struct)]))


def told() -> Column:
    """The content of a decoded engagement as the struct of the Data Table."""
    return F.struct(*CONTENT)
