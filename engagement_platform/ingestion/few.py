"""A batch of few engagements, settled in this process.

The same rules as `many` and `settle` for what fits into memory many times over: Spark's fixed cost of half a second
for each lookup would be most of a small batch. Tests hold the two ways together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from engagement_platform.engine.model import Manifest
from engagement_platform.ingestion.batch import QUANTILES, EngagementBatch, NameChanges, Summary
from engagement_platform.ingestion.rows import not_quarantined, refuted, refuted_before
from engagement_platform.ingestion.settle import COORDINATES, ID, Verdict
from engagement_platform.ingestion.settle_few import (
    Key,
    Outcome,
    Row,
    Settled,
    StandingAs,
    distinct,
    key_of,
    settle_copies,
)
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.audit_columns import stamped_here
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import MAPPING, ORIGINAL, SAID_NAME, SUPERSEDED
from engagement_platform.lake.erased import PSEUDONYM
from engagement_platform.lake.lake import Lake, Rows, here
from engagement_platform.landing.withheld import ENGAGEMENTS, as_markers, withheld
from engagement_platform.mutation import names
from engagement_platform.mutation.accepted import (
    Accepted,
    as_content,
    as_struct,
    name_ends,
    settled_names,
)
from engagement_platform.mutation.content import Patch, patched
from engagement_platform.mutation.identity import identities_of
from engagement_platform.mutation.resolver import Identities
from engagement_platform.pii.tombstones import Nobody, Tombstones

CONTENT = ("type", "channel", "subject", "attributes")


@dataclass
class FewEngagements(EngagementBatch):
    """A batch whose rows are in this process."""

    rejected: pa.Table
    accepted: pa.Table
    """With `now`: the identity after all former requests, null when deleted; and `nth`, the position."""
    looked_up: Settled
    """Of the rows of `accepted` (by position) that needed a second look; the others are new and alone."""
    requests: Accepted
    patched: Mapping[int, Row]
    """Position of a landing row -> its content after former patches, where that is not what it said."""

    def rejected_rows(self) -> Rows:
        """Rows for quarantine. Records that the table refutes are read from the source again, since they are few."""
        columns = [*COORDINATES, "key", "value", "reason_code", "reason"]
        rows = self.rejected.select(columns)
        if self.contradictions:
            few = self._coordinates_of(Verdict.QUARANTINE)
            refuted_ones = refuted(self.raw, self.lake.frame(few)).select(*columns).toArrow()
            rows = pa.concat_tables([rows, refuted_ones.cast(rows.schema)])
        if self.manifest.goes_over_again:
            rows = not_quarantined(self.lake.frame(rows), self.lake, self.manifest).toArrow()
        return stamped_here(rows, self.manifest)

    def said_names(self) -> Rows:
        """Rows for the log of names."""
        rows = [(saying.organization_id, saying.id, saying.said.name, saying.said.name_ts) for saying in self._sayings]
        columns = ("organization_id", "id", "name", "name_ts")
        stamps = {"batch_id": self.manifest.batch_id}
        return table_of(({**dict(zip(columns, row, strict=True)), **stamps} for row in sorted(set(rows))), SAID_NAME)

    def name_changes(self) -> NameChanges:
        """The newest name of each person, where it is newer than what the pinned mapping has."""
        newest: dict[Key, names.Said] = {}
        for saying in self._sayings:
            key = (saying.organization_id, saying.id)
            newest[key] = max(newest.get(key, saying.said), saying.said)
        where = {"organization_id": sorted({key[0] for key in newest}), "id": sorted({key[1] for key in newest})}
        pinned = self.manifest.table_versions[MAPPING.name]
        known = self.lake.find(MAPPING, pinned, ("organization_id", "id", "name", "name_ts"), where)
        stands = {(row["organization_id"], row["id"]): (row["name_ts"], row["name"]) for row in known.to_pylist()}
        careful = self._not_simply(newest, stands)
        rows = []
        for key, said in newest.items():
            word = (said.name_ts, said.name)
            if key not in careful and (key not in stands or word > stands[key]):
                rows.append(dict(zip(_NAME, (*key, said.name, said.name_ts, key not in stands), strict=True)))
        if careful:
            rows += settled_names(self.requests, careful, self._sayings, self.lake, self.manifest)
        new = sum(bool(row["is_new"]) for row in rows)
        made = table_of(({**row, "batch_id": self.manifest.batch_id} for row in rows), MAPPING)
        return NameChanges(made, new, len(rows) - new)

    def _not_simply(self, newest: Mapping[Key, names.Said], stands: Mapping[Key, tuple[datetime, str]]) -> set[Key]:
        """Ids for which the newest name is not simply the one: requests moved names, or two were said at one time."""
        moved = name_ends(self.requests.edges)
        return {
            key for key, said in newest.items()
            if key in moved or (key in stands and stands[key][0] == said.name_ts and stands[key][1] != said.name)
        }  # fmt: skip

    def data_rows(self, verdict: Verdict) -> Rows:
        """Rows for the Data Table, under the identity and with the content that former requests gave them."""
        rows = self._with(verdict).combine_chunks()
        told = pa.StructArray.from_arrays([_chunk(rows, name) for name in CONTENT], list(CONTENT))
        rows = rows.append_column("source_person_id", rows.column("person_id")).append_column("engagement", told)
        rows = rows.set_column(rows.schema.get_field_index("person_id"), "person_id", rows.column("now"))
        rows = stamped_here(rows, self.manifest).select([*self.data.column_names, "nth"])
        touched = pa.array([nth for nth in self.patched if self._verdict(nth) is verdict], pa.int64())
        if len(touched):
            few = rows.filter(pc.is_in(rows.column("nth"), touched)).to_pylist()
            changed = table_of(({**row, "engagement": self.patched[row["nth"]]} for row in few), self.data)
            rest = rows.filter(pc.invert(pc.is_in(rows.column("nth"), touched))).drop_columns(["nth"])
            return pa.concat_tables([rest, changed.cast(rest.schema)])
        return rows.drop_columns(["nth"])

    def original_rows(self) -> Rows:
        """What patched engagements said, before any patch."""
        few = self.accepted.take(pa.array(sorted(self.patched), pa.int64())).to_pylist()
        rows = (
            {**row, "batch_id": self.manifest.batch_id, "engagement": {name: row[name] for name in CONTENT}}
            for row in few
        )
        return table_of(rows, ORIGINAL)

    @property
    def originals(self) -> int:
        """How many rows that is."""
        return len(self.patched)

    def superseded_rows(self) -> Rows:
        """What versions said that landed and do not stand: the replaced ones, and lower ones that came."""
        # What was refuted then is not the first of its version, only the first that is known here.
        lower = [nth for nth in self._positions(Verdict.SUPERSEDED) if nth not in self._refuted_then]
        copies = self.accepted.take(pa.array(lower, pa.int64())).to_pylist()
        rows = [*({**row, "source_person_id": row["person_id"]} for row in copies), *self.looked_up.replaced]
        manifest = self.manifest
        stamps = {
            "batch_id": manifest.batch_id, "batch_sequence": manifest.sequence, "ingestion_ts": manifest.ingestion_ts,
        }  # fmt: skip
        said = ({**row, **stamps, "engagement": {name: row[name] for name in CONTENT}} for row in rows)
        return table_of(said, SUPERSEDED)

    def notification_rows(self) -> Rows:
        """One row for each copy that lands and changes what readers see, inserts first."""
        changes = [(verdict, self._with(verdict)) for verdict in (Verdict.INSERT, Verdict.UPDATE)]
        rows = pa.concat_tables([rows for _, rows in changes])
        place = [rows.column(name).cast(pa.string()) for name in COORDINATES]
        rows = rows.append_column("notification_id", pc.binary_join_element_wise(self.manifest.app_id, *place, "/"))
        previous: list[str | None] = [None] * changes[0][1].num_rows
        previous += [self.looked_up.outcomes[nth][2] for nth in self._positions(Verdict.UPDATE)]
        was, now = pa.array(previous, pa.string()), rows.column("now")
        kinds = pc.if_else(pc.is_null(now), "DELETE", pc.if_else(pc.is_null(was), "INSERT", "UPDATE"))
        rows = rows.append_column("change_type", kinds).append_column("previous_person_id", was)
        rows = rows.set_column(rows.schema.get_field_index("person_id"), "person_id", now)
        seen = pc.or_(pc.is_valid(rows.column("person_id")), pc.is_valid(rows.column("previous_person_id")))
        return stamped_here(rows.filter(seen), self.manifest)

    @cached_property
    def unseen(self) -> int:
        """Copies that land and nobody sees: their person was deleted before they came."""
        inserted = int(self._with(Verdict.INSERT).column("now").null_count)
        gone = [nth for nth in self._positions(Verdict.UPDATE) if self.looked_up.outcomes[nth][2] is None]
        return inserted + int(self.accepted.take(pa.array(gone, pa.int64())).column("now").null_count)

    def _verdict(self, nth: int) -> Verdict:
        return self.looked_up.outcomes[nth][0] if nth in self.looked_up.outcomes else Verdict.INSERT

    def touched(self) -> dict[str, Sequence[object]]:
        """Organizations and days of the updates."""
        rows = self._with(Verdict.UPDATE)
        return {name: distinct(rows, name) for name in ("organization_id", "engagement_date")}

    def _positions(self, verdict: Verdict) -> list[int]:
        """Where the copies with a verdict stand in `accepted`, of those that needed a second look."""
        return sorted(nth for nth, outcome in self.looked_up.outcomes.items() if outcome[0] is verdict)

    def _with(self, verdict: Verdict) -> pa.Table:
        """The copies with a verdict."""
        if verdict is not Verdict.INSERT:
            return self.accepted.take(pa.array(self._positions(verdict), pa.int64()))
        mask = np.ones(self.accepted.num_rows, dtype=bool)
        mask[[nth for nth, outcome in self.looked_up.outcomes.items() if outcome[0] is not Verdict.INSERT]] = False
        return self.accepted.filter(pa.array(mask))

    def _coordinates_of(self, verdict: Verdict) -> pa.Table:
        """Coordinates and reason of the copies with a verdict."""
        codes = [self.looked_up.outcomes[nth][1] for nth in self._positions(verdict)]
        return self._with(verdict).select(list(COORDINATES)).append_column("reason_code", pa.array(codes, pa.string()))

    @cached_property
    def _sayings(self) -> list[names.Saying]:
        """Every name that was said, by all copies but those refuted, now or earlier."""
        unheard = {*self._positions(Verdict.QUARANTINE), *self._refuted_then}
        said = self.accepted.filter(pc.is_valid(self.accepted.column("person_name")))
        columns = ("nth", "organization_id", "person_id", "person_name", "engagement_ts")
        return [
            names.Saying(organization, person, names.Said(moment, False, "", name))
            for nth, organization, person, name, moment in zip(
                *(said.column(column).to_pylist() for column in columns), strict=True
            )
            if nth not in unheard
        ]

    @cached_property
    def _refuted_then(self) -> set[int]:
        """Copies that change nothing now and were refuted when they were read before."""
        if not self.manifest.goes_over_again:
            return set()
        again = refuted_before(self.raw, self.lake, self.manifest).toArrow()
        places = set(zip(*(again.column(name).to_pylist() for name in COORDINATES), strict=True))
        # Only a copy that changes nothing now can be one that was refuted then.
        positions = [nth for verdict in (Verdict.DUPLICATE, Verdict.SUPERSEDED) for nth in self._positions(verdict)]
        copies = self.accepted.take(pa.array(positions, pa.int64()))
        mine = zip(*(copies.column(name).to_pylist() for name in COORDINATES), strict=True)
        return {nth for nth, at in zip(positions, mine, strict=True) if at in places}


_NAME = ("organization_id", "id", "name", "name_ts", "is_new")


def _patched(
    accepted: pa.Table, outcomes: Mapping[int, Outcome], patches: Mapping[Key, Sequence[Patch]]
) -> dict[int, Row]:
    """Content of the landing rows that former patches change."""
    if not patches:
        return {}
    engagements = pa.array([engagement for _, engagement in patches], pa.string())
    found = {}
    for row in accepted.filter(pc.is_in(accepted.column("engagement_id"), engagements)).to_pylist():
        verdict = outcomes[row["nth"]][0] if row["nth"] in outcomes else Verdict.INSERT
        if key_of(row) in patches and verdict in {Verdict.INSERT, Verdict.UPDATE}:
            said = as_content(row)
            content = patched(said, row["engagement_ts"], patches[key_of(row)])
            if content != said:
                found[row["nth"]] = as_struct(content)
    return found


def _chunk(rows: pa.Table, column: str) -> pa.Array:
    """A column of a table that was made one chunk."""
    chunks = rows.column(column)
    return chunks.chunk(0) if chunks.num_chunks else pa.array([], chunks.type)


def open_few(
    lake: Lake,
    data: Table,
    manifest: Manifest,
    raw: DataFrame,
    decoded: Rows,
    tombstones: Tombstones | None = None,
) -> FewEngagements | None:
    """Look up what is known, settle; None when the batch has too many bytes to be in this process.

    decoded: not read yet where it is a frame. tombstones: whose records become markers. Cost: that of reading it, and
    reading keys of the Data Table without Spark.
    """
    table = here(decoded)
    if table is None:
        return None
    table = withheld(table, ENGAGEMENTS, tombstones or Nobody(), lake.settings.decoding.aliases)
    accepted = _accepted(table)
    former = Accepted(lake, manifest, distinct(accepted, "organization_id"), lake.settings.mutation)
    identities = Identities(former.edges)
    now = identities_of(accepted.rename_columns({"person_id": "source_person_id"}), identities)
    if (led := pc.starts_with(now, PSEUDONYM).fill_null(False)).true_count:
        # Of somebody who became a person that is erased.
        places = pa.array(range(table.num_rows), pa.int64()).filter(pc.is_null(table.column("reason_code")))
        marked = pc.is_in(pa.array(range(table.num_rows), pa.int64()), places.filter(led))
        table, now = as_markers(table, marked), now.filter(pc.invert(led))
        accepted = _accepted(table)
    summary = summarize(table, accepted)
    accepted = accepted.append_column("now", now).append_column("nth", pa.array(range(accepted.num_rows), pa.int64()))
    patches = former.patches(zip(*(accepted.column(name).to_pylist() for name in ID), strict=True))
    looked_up = settle_copies(lake, data, manifest, accepted, StandingAs(former, identities, patches))
    counts: dict[str, int] = defaultdict(int)
    for verdict, reason, _previous in looked_up.outcomes.values():
        counts[reason or verdict.value] += 1
    return FewEngagements(
        lake=lake,
        data=data,
        manifest=manifest,
        raw=raw,
        summary=summary,
        settled=dict(counts),
        rejected=table.filter(pc.is_valid(table.column("reason_code"))),
        accepted=accepted,
        looked_up=looked_up,
        requests=former,
        patched=_patched(accepted, looked_up.outcomes, patches),
    )


def _accepted(table: pa.Table) -> pa.Table:
    return table.filter(pc.is_null(table.column("reason_code"))).drop_columns(["reason_code", "reason", "key", "value"])


def summarize(table: pa.Table, accepted: pa.Table) -> Summary:
    """What `many.summarize` finds, from rows in this process."""
    codes = table.column("reason_code").drop_null().value_counts().to_pylist()
    timed = accepted if accepted.num_rows else table
    produced = timed.column("produced_ts").cast(pa.int64()).drop_null()
    quantiles = pc.quantile(produced, list(QUANTILES), interpolation="lower").to_pylist() if len(produced) else []
    return Summary(
        rows_in=table.num_rows,
        bytes_in=pc.sum(table.column("value_bytes")).as_py() or 0,
        rejected={code["values"]: code["counts"] for code in codes},
        unknown_fields=pc.sum(table.column("unknown_fields")).as_py() or 0,
        named=accepted.num_rows - accepted.column("person_name").null_count,
        organizations=distinct(accepted, "organization_id"),
        dates=distinct(accepted, "engagement_date"),
        produced_quantiles_ms=tuple(int(microseconds) // 1000 for microseconds in quantiles),
    )
