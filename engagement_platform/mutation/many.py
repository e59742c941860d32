"""A batch of mutations resolved in Spark: the same as `few` for what does not fit into one process.

Into this process come the UPDATEs with the rows that they name, rejected requests, and figures; for names also the
edges of the batch's organizations, while they are no more than `mutation.light_edges`. All else stays in Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from engagement_platform.engine.model import Manifest
from engagement_platform.lake.affected_files import touched as files_touched
from engagement_platform.lake.arrow import schema_of, table_of
from engagement_platform.lake.audit_columns import stamped, stamped_here
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, AMENDMENT, MAPPING, NOTIFICATION, QUARANTINE, SAID_NAME
from engagement_platform.lake.lake import Lake, Rows, any_of
from engagement_platform.mutation import naming
from engagement_platform.mutation.accepted import (
    Accepted,
    Id,
    TooMany,
    as_content,
    as_struct,
    edges_of,
    known_originals,
    moved_names,
    pinned,
)
from engagement_platform.mutation.batch import KEY, Cascades, Changes, Figures, MutationBatch
from engagement_platform.mutation.cascade import figures, operations, resolve
from engagement_platform.mutation.content import Patch, patched
from engagement_platform.mutation.identify import identified
from engagement_platform.mutation.requests import FIELDS, LANDING_ORDER, REASONS, Request
from engagement_platform.mutation.strategy import Choice, choose
from engagement_platform.settings import MutationSettings

REQUEST = ("organization_id", "request_id")
ROW = ("organization_id", "engagement_date", "engagement_ts", "engagement_id", "person_id", "source_person_id")
_OPERATION = ("organization_id", "from_id", "engaged_from", "engaged_before", "to_id", "request_id")


def open_many(
    lake: Lake,
    data: Table,
    manifest: Manifest,
    rows: DataFrame,
    settings: MutationSettings,
    organizations: Sequence[str] = (),
) -> MutationBatch:
    """Resolve the requests of a batch.

    rows: FIELDS and PLACE of `engagement/mutation_request`. organizations: others that wait to be moved.
    """
    found = {row[0] for row in rows.select("organization_id").distinct().collect()}
    organizations = sorted(found | set(organizations))
    log_ = Accepted(lake, manifest, organizations, settings)
    judged = _judged(rows, log_).localCheckpoint()
    counts = [row.asDict() for row in judged.groupBy("verdict", "operation").count().collect()]
    accepted = judged.where("verdict = 'accepted'").select(*FIELDS)
    moving_names = sum(row["count"] for row in counts if _is(row, "CONVERT", "DELETE", "RENAME"))
    settled = _Settled(lake, data, manifest, settings, log_, accepted, moving_names)
    return MutationBatch(
        lake=lake,
        data=data,
        manifest=manifest,
        organizations=log_.organizations,
        figures=_figures(counts),
        settled=settled,
        rejected=_rejected(judged.where(F.col("verdict").isin(*REASONS)), manifest),
        aliases=stamped(accepted.where(_moves_identity()), manifest),
        aliases_count=sum(row["count"] for row in counts if _is(row, "CONVERT", "DELETE")),
        amendments=stamped(accepted.where(~_moves_identity()), manifest),
        amendments_count=sum(row["count"] for row in counts if _is(row, "RENAME", "UPDATE")),
        moving=(),
        was_pending=log_.pending,
    )


def _is(row: Mapping[str, Any], *operations_: str) -> bool:
    return row["verdict"] == "accepted" and row["operation"] in operations_


def _moves_identity() -> Column:
    return F.col("operation").isin("CONVERT", "DELETE")


def _content() -> Column:
    """What two copies of one request_id must share. Maps cannot be compared, so attributes become sorted entries."""
    simple = [name for name in FIELDS if name not in {*REQUEST, "attributes", "set_null"}]
    return F.struct(
        *simple,
        F.array_sort(F.map_entries("attributes")).alias("attributes"),
        F.array_sort(F.coalesce("set_null", F.array().cast("array<string>"))).alias("set_null"),
    )


def _judged(rows: DataFrame, log_: Accepted) -> DataFrame:
    """Requests with `verdict`, as `requests.judge` decides it."""
    known: DataFrame | None = None
    for table in (ALIAS, AMENDMENT):
        logged = log_.lake.read(table, pinned(log_.manifest, table)).where(
            any_of("organization_id", log_.organizations)
        )
        types = {column.name: column.type for column in (*ALIAS.columns, *AMENDMENT.columns)}
        fields = [F.col(n) if n in table.column_names else F.lit(None).cast(types[n]).alias(n) for n in FIELDS]
        logged = logged.select(*fields).select(*REQUEST, _content().alias("known"))
        known = logged if known is None else known.unionByName(logged)
    assert known is not None
    first = Window.partitionBy(*REQUEST).orderBy(*LANDING_ORDER)
    said = rows.withColumn("content", _content())
    joined = said.join(known.join(rows.select(*REQUEST).distinct(), list(REQUEST), "left_semi"), list(REQUEST), "left")
    before = first.rowsBetween(Window.unboundedPreceding, -1)
    earlier = F.first("content").over(before)
    claimed = F.coalesce("known", "earlier")
    verdict = (
        F.when(claimed.isNull(), "accepted")
        .when(claimed.eqNullSafe(F.col("content")), "duplicate")
        .otherwise("request_conflict")
    )
    return joined.withColumn("earlier", earlier).withColumn("verdict", verdict)


def _rejected(rows: DataFrame, manifest: Manifest) -> Rows:
    """Rows for quarantine. They are few, and said again as the messages they were."""
    made = []
    for row in rows.select(*FIELDS, "topic", "partition", "offset", "verdict").toArrow().to_pylist():
        request = Request.of(row)
        place = {name: row[name] for name in ("topic", "partition", "offset")}
        code = row["verdict"]
        said = {"key": request.organization_id.encode(), "value": request.message()}
        made.append({**place, **said, "reason_code": code, "reason": REASONS[code]})
    columns = ("topic", "partition", "offset", "key", "value", "reason_code", "reason")
    return stamped_here(table_of(made, QUARANTINE, *columns), manifest)


def _figures(counts: Sequence[Mapping[str, Any]]) -> Figures:
    verdicts: Counter[str] = Counter()
    for row in counts:
        verdicts[row["verdict"]] += row["count"]
    return Figures(
        rows_in=sum(verdicts.values()),
        accepted=verdicts["accepted"],
        duplicates=verdicts["duplicate"],
        rejected={reason: verdicts[reason] for reason in REASONS if verdicts[reason]},
        by_operation={row["operation"]: row["count"] for row in counts if row["verdict"] == "accepted"},
    )


@dataclass
class _Settled:
    """Resolves one batch in Spark."""

    lake: Lake
    data: Table
    manifest: Manifest
    settings: MutationSettings
    log: Accepted
    accepted: DataFrame
    moving_names: int
    """Accepted requests that may change names: all but UPDATEs."""

    def __post_init__(self) -> None:
        self.originals: list[dict[str, Any]] = []
        self.choices: dict[str, Choice] = {}

    @cached_property
    def _new(self) -> DataFrame:
        return self.accepted.where(_moves_identity()).select(*_edge_columns())

    @cached_property
    def _moving(self) -> list[str]:
        """Organizations in which identities move now, or wait to be moved."""
        found = {row[0] for row in self._new.select("organization_id").distinct().collect()}
        return sorted(found | (self.log.pending.keys() & set(self.log.organizations)))

    def _known(self, organizations: Sequence[str]) -> DataFrame:
        edges = self.lake.read(ALIAS, pinned(self.manifest, ALIAS)).where(any_of("organization_id", organizations))
        return edges.select(*_edge_columns())

    @cached_property
    def cascades(self) -> Cascades:
        """Of the new edges, which run into the known ones."""
        marked = self._new.withColumn("is_new", F.lit(True)).unionByName(
            self._known(self._moving).withColumn("is_new", F.lit(False))
        )
        row = figures(resolve(marked, engine=self.settings.resolver)).collect()[0]
        return Cascades(*(int(row[name] or 0) for name in Cascades._fields))

    def names(self) -> Sequence[Mapping[str, Any]] | DataFrame:
        """Rows of the mapping that differ from what stands: found here while the edges are few, else in Spark."""
        if not self.moving_names:
            return []
        if self.moving_names <= self.settings.light_edges:
            with suppress(TooMany):
                return self._names_here()
        return self._names_in_spark()

    def _names_in_spark(self) -> DataFrame:
        """The names of all ids that an edge of these organizations may move, where the mapping says otherwise."""

        def logged(table: Table) -> DataFrame:
            rows = self.lake.read(table, pinned(self.manifest, table))
            return rows.where(any_of("organization_id", self.log.organizations))

        columns = ("organization_id", "request_id", "operation", "from_id", "name", "execution_ts")
        renames = logged(AMENDMENT).select(*columns).unionByName(self.accepted.select(*columns))
        moves = naming.plain(self._known(self.log.organizations).unionByName(self._new)).localCheckpoint()
        ids = naming.concerned(moves, renames).localCheckpoint()
        said = naming.sayings(logged(SAID_NAME), renames).join(ids, ["organization_id", "id"], "left_semi")
        stands = logged(MAPPING).join(ids, ["organization_id", "id"], "left_semi")
        changed = naming.differing(naming.named(said, moves), stands)
        batch_id = F.lit(self.manifest.batch_id).cast("long").alias("batch_id")
        return changed.select("*", batch_id).select(*MAPPING.column_names)

    def _names_here(self) -> list[dict[str, Any]]:
        """Raises TooMany."""
        edges_ = self.log.edges
        renames = [Request.of(row) for row in self.accepted.where("operation = 'RENAME'").toArrow().to_pylist()]
        new = edges_of(self._new.toArrow())
        edges = [*edges_, *new]
        return moved_names(self.log, edges, new, renames)

    @cached_property
    def _patched(self) -> dict[Id, dict[str, Any]]:
        """Rows whose content patches change: KEY and `patched`. Notes the originals of first patches."""
        updates = [Request.of(row).patch() for row in self.accepted.where("operation = 'UPDATE'").toArrow().to_pylist()]
        wanted = {(patch.organization_id, patch.engagement_id) for patch in updates}
        if not wanted:
            return {}
        where = {
            name: sorted({key[i] for key in wanted}) for i, name in enumerate(("organization_id", "engagement_id"))
        }
        columns = (*ROW, "version", "engagement")
        found = self.lake.find(self.data, self.manifest.table_versions[self.data.name], columns, where).to_pylist()
        rows = {(row["organization_id"], row["engagement_id"]): row for row in found}
        rows = {key: row for key, row in rows.items() if key in wanted}
        patches: dict[Id, list[Patch]] = {key: list(some) for key, some in self.log.patches(wanted).items()}
        for patch in updates:
            patches.setdefault((patch.organization_id, patch.engagement_id), []).append(patch)
        originals = known_originals(self.lake, self.manifest, list(rows.values()))
        changed = {}
        for key, row in rows.items():
            standing, version = row["engagement"], row["version"]
            original = originals.get((key, version))
            content = as_struct(patched(as_content(original or standing), row["engagement_ts"], patches[key]))
            if as_content(content) == as_content(standing):
                continue
            changed[key] = {**{name: row[name] for name in KEY}, "patched": content}
            if original is None:
                of = {name: row[name] for name in ("organization_id", "engagement_id", "version")}
                self.originals.append({**of, "batch_id": self.manifest.batch_id, "engagement": standing})
        return changed

    @cached_property
    def _rows(self) -> DataFrame:
        """ROW, now, previous, walks, patched: of all rows of moving organizations, and of those that are patched."""
        data = self.lake.read(self.data, self.manifest.table_versions[self.data.name]).select(*ROW)
        moving = data.where(any_of("organization_id", self._moving)) if self._moving else data.where(F.lit(False))
        known = self._known(self._moving)
        rows = identified(moving, known.unionByName(self._new), engine=self.settings.resolver)
        if self.log.pending:
            before = identified(
                rows.withColumnsRenamed({"now": "n", "walks": "w"}), known, engine=self.settings.resolver
            )
            rows = before.drop("walks").withColumnsRenamed({"now": "previous", "n": "now", "w": "walks"})
        else:
            rows = rows.withColumn("previous", F.col("person_id"))
        if not self._patched:
            return rows.withColumn("patched", F.lit(None).cast(_struct(self.data))).localCheckpoint()
        schema = pa.schema(
            [*schema_of(self.data, *KEY), pa.field("patched", schema_of(self.data, "engagement").field(0).type)]
        )
        patches = F.broadcast(self.lake.frame(pa.Table.from_pylist(list(self._patched.values()), schema=schema)))
        others = data.where(~any_of("organization_id", self._moving)) if self._moving else data
        where = {name: sorted({row[name] for row in self._patched.values()}) for name in KEY[:2]}
        others = others.where(any_of("organization_id", where["organization_id"]))
        others = others.where(any_of("engagement_date", where["engagement_date"]))
        still = others.join(patches.select(*KEY), list(KEY), "left_semi").withColumns(
            {"now": F.col("person_id"), "previous": F.col("person_id"), "walks": F.lit(False)}
        )
        return rows.unionByName(still).join(patches, list(KEY), "left").localCheckpoint()

    def changes(self) -> Changes:
        """The rows that change, and what becomes of them."""
        rows = self._rows
        moves = ~F.col("now").eqNullSafe(F.col("person_id"))
        found = rows.where(moves).groupBy("organization_id").agg(F.count("*"), F.collect_set("engagement_date"))
        self._choose({row[0]: (row[1], row[2]) for row in found.collect()})
        direct = sorted(name for name, choice in self.choices.items() if choice.strategy != "alias")
        overwrites = any(choice.strategy == "overwrite" for choice in self.choices.values())
        here = F.col("organization_id").isin(direct)
        apart = rows.where("walks").select("organization_id", "source_person_id").distinct().localCheckpoint()
        marked = rows.join(
            F.broadcast(apart.withColumn("apart", F.lit(True))), ["organization_id", "source_person_id"], "left"
        ).withColumns({"moves": here & moves, "alone": F.coalesce("apart", F.lit(False)) | F.lit(overwrites)})
        written = marked.where(F.col("moves") | F.col("patched").isNotNull()).localCheckpoint()
        operations_ = self._operations(written.where("moves AND NOT alone"))
        kept = written.where((F.col("moves") & F.col("alone")) | F.col("patched").isNotNull()).localCheckpoint()
        sets = [F.collect_set(name).alias(name) for name in KEY[:2]]
        summary = kept.agg(F.count("*").alias("rows"), *sets).collect()[0]
        made = kept.select(
            *KEY,
            F.when(here, F.col("now")).otherwise(F.col("person_id")).alias("person_id"),
            F.lit(self.manifest.batch_id).cast("long").alias("batch_id"),
            F.col("patched").alias("engagement"),
        )
        return Changes(
            operations=operations_,
            operation_rows=operations_.count(),
            rows=made,
            rows_count=summary["rows"],
            within={name: sorted(summary[name]) for name in KEY[:2]},
            changed_rows=written.count(),
            by_operation=not overwrites,
            **self._notified(),
        )

    def _choose(self, changed: Mapping[str, tuple[int, Collection[date]]]) -> None:
        """changed: organization -> its rows that change, and their days."""
        touched = sorted(changed.keys() | set(self.log.pending))
        changes = {name: changed.get(name, (0, ())) for name in touched}
        version = self.manifest.table_versions[self.data.name]
        held = files_touched(self.lake.uri(self.data), version, {name: days for name, (_, days) in changes.items()})
        partitioned = "organization_id" in self.data.partitioned_by
        for name in touched:
            self.choices[name] = choose(changes[name][0], *held[name], self.settings, partitioned=partitioned)

    def _operations(self, moved: DataFrame) -> DataFrame:
        """The operations that move these rows."""
        ids = moved.select("organization_id", F.col("source_person_id").alias("from_id")).distinct()
        resolved = resolve(self._known(self._moving).unionByName(self._new), engine=self.settings.resolver)
        return (
            operations(resolved)
            .join(ids, ["organization_id", "from_id"], "left_semi")
            .select(*_OPERATION)
            .localCheckpoint()
        )

    def _notified(self) -> dict[str, Any]:
        """Rows for the notification table, and how many of each kind."""
        gone, new = F.col("now").isNull(), F.col("previous").isNull()
        differs = ~F.col("now").eqNullSafe(F.col("previous")) | (~gone & F.col("patched").isNotNull())
        begin = f"{self.manifest.app_id}/{self.manifest.batch_id}"
        identity = F.concat_ws(
            "/", F.lit(begin), F.char_length("organization_id").cast("string"), "organization_id", "engagement_id"
        )
        seen = self._rows.where(differs).select(
            identity.alias("notification_id"),
            *KEY,
            F.when(gone, "DELETE").when(new, "INSERT").otherwise("UPDATE").alias("change_type"),
            F.col("now").alias("person_id"),
            F.col("previous").alias("previous_person_id"),
        )
        counts = {row["change_type"]: int(row["count"]) for row in seen.groupBy("change_type").count().collect()}
        rows = stamped(seen, self.manifest).select(*NOTIFICATION.column_names)
        return {
            "notifications": rows,
            "inserted": counts.get("INSERT", 0),
            "updated": counts.get("UPDATE", 0),
            "deleted": counts.get("DELETE", 0),
        }


def _edge_columns() -> list[str]:
    return [name for name in ALIAS.column_names if name != "batch_id"]


def _struct(data: Table) -> str:
    return next(column.type for column in data.columns if column.name == "engagement")
