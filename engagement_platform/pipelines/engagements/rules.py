"""Decide what each copy of an engagement becomes: the rules of one organization, over Arrow tables.

Pure functions: no Spark, no I/O, no clock. `job` runs them in Spark, group by group; tests run them directly. Which
person a row belongs to is decided by `Identities`, what patches make of its content by `patched`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.pipelines.engagements.schema import PLAN, ROW
from engagement_platform.pipelines.mutations.identity import Identities, identities_of
from engagement_platform.pipelines.state import Requests, Row, content_of, digest, newest_rows, one_chunk

REASONS: Final = {
    "version_conflict": "The same version of this engagement landed before with different content; the first stays.",
    "moved_in_time": "This engagement stands on another day; all versions must carry the same engagement_ts.",
}


class Verdict(StrEnum):
    """What becomes of one copy."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    SUPERSEDED = "SUPERSEDED"
    """The first copy of a version below the highest: only its digest is kept, to recognize later copies."""
    DUPLICATE = "DUPLICATE"
    QUARANTINE = "QUARANTINE"
    UNFOUND = "UNFOUND"
    """A version above 1 of an id that is not known on its day: the state has to hold all days."""


class Target(StrEnum):
    """The table that takes the row of a copy."""

    DATA = "data"
    CHANGESET = "changeset"


def resolve(organization_id: str, copies: pa.Table, state: pa.Table, *, all_days: bool, announced: int) -> pa.Table:
    """The batch plan of one organization.

    copies: schema COPY, decoded and accepted, at most one row per Kafka coordinate.
    state: schema STATE: every row of the Data Table and the changeset whose id is among the copies, every accepted
    CONVERT and DELETE of the organization executed since the first of their days, every accepted UPDATE of these ids.
    all_days: the state has rows of all days; without, of the days of the copies, and copies that may stand on another
    day get the verdict UNFOUND.
    announced: requests up to this sequence are announced to readers of notifications.
    Returns schema PLAN, one row per copy. Cost: vectorized for ids that are new, alone and not patched; about 30 µs
    for each other copy (a guess).
    """
    requests = Requests.of(organization_id, state)
    announced_identities = _announced(organization_id, state, requests.identities, announced)
    known = newest_rows(state)
    simple = _simple(copies, known, requests.patches, all_days=all_days)
    plain = _inserted(copies.filter(simple), requests.identities, announced_identities)
    rows = copies.filter(pc.invert(simple)).to_pylist()
    by_id: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_id.setdefault(row["engagement_id"], []).append(row)
    decided: list[dict[str, Any]] = []
    for engagement_id, of_id in sorted(by_id.items()):
        decided += _of_one_id(of_id, known.get(engagement_id), requests, announced_identities, all_days=all_days)
    return pa.concat_tables([plain, pa.Table.from_pylist(decided, schema=PLAN)])


def _announced(organization_id: str, state: pa.Table, identities: Identities, announced: int) -> Identities:
    """Identities by the edges that are announced."""
    edges = state.column("edge")
    newest = pc.max(pc.struct_field(edges, "sequence")).as_py()
    if newest is None or newest <= announced:
        return identities
    return Identities(Requests.edges_of(organization_id, state, before=announced + 1))


def _simple(
    copies: pa.Table, known: Mapping[str, Row], patches: Mapping[str, object], *, all_days: bool
) -> pa.ChunkedArray:
    """Which copies are alone with an id that nothing is known of."""
    ids = copies.column("engagement_id")
    counts = pc.value_counts(ids)
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    special = pa.concat_arrays([repeated.cast(pa.string()), pa.array([*known, *patches], pa.string())])
    simple = pc.invert(pc.is_in(ids, special))
    return simple if all_days else pc.and_(simple, pc.less_equal(copies.column("version"), 1))


def _inserted(copies: pa.Table, identities: Identities, announced_identities: Identities) -> pa.Table:
    """The plan of copies that are new and alone."""
    copies = copies.combine_chunks()
    count = copies.num_rows
    sourced = copies.rename_columns({"person_id": "source_person_id"})
    now = identities_of(sourced, identities)
    announced = now if announced_identities is identities else identities_of(sourced, announced_identities)
    content = pa.StructArray.from_arrays(
        [one_chunk(copies.column(name)) for name in ("type", "channel", "subject", "attributes")],
        fields=list(ROW.field("engagement").type),
    )
    columns = {
        **{name: copies.column(name) for name in ("topic", "partition", "offset")},
        "verdict": pa.repeat(Verdict.INSERT.value, count),
        "change_type": pc.if_else(pc.is_valid(announced), pa.scalar("INSERT"), pa.scalar(None, pa.string())),
        "announced_person_id": announced,
        "named_id": copies.column("person_id"),
        "name": copies.column("person_name"),
        "name_ts": copies.column("engagement_ts"),
        "target": pa.repeat(Target.DATA.value, count),
        **{name: copies.column(name) for name in ROW.names[:4]},
        "person_id": now,
        "source_person_id": copies.column("person_id"),
        "version": copies.column("version"),
        "engagement": content,
    }
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in PLAN]
    return pa.Table.from_arrays(arrays, schema=PLAN)


def _of_one_id(
    copies: Sequence[Mapping[str, Any]],
    known: Row | None,
    requests: Requests,
    announced_identities: Identities,
    *,
    all_days: bool,
) -> list[dict[str, Any]]:
    """The plan of all copies of one id.

    Of one version, what landed before or else the first copy by Kafka coordinates counts; of several new versions the
    highest lands. The day of an id is the day where it stands; of a new id, that of its first copy.
    """
    if known is None and not all_days and max(copy["version"] for copy in copies) > 1:
        return [_plan(copy, Verdict.UNFOUND) for copy in copies]
    in_order = sorted(copies, key=lambda copy: (copy["topic"], copy["partition"], copy["offset"]))
    day = known.engagement_date if known else in_order[0]["engagement_date"]
    held = known.digests if known else {}
    plans: list[dict[str, Any]] = []
    new: list[dict[str, Any]] = []
    for copy in in_order:
        own_digest = digest(copy["person_id"], copy["engagement_ts"], content_of(copy))
        is_first = copy["version"] not in held
        if copy["engagement_date"] != day:
            plan = _refused(copy, "moved_in_time")
        elif held.setdefault(copy["version"], own_digest) != own_digest:
            plan = _refused(copy, "version_conflict")
        else:
            plan = _plan(copy, Verdict.SUPERSEDED if is_first else Verdict.DUPLICATE)
            if is_first:
                new.append({"plan": plan, "copy": copy})
        plans.append(plan)
    if new:
        highest = max(new, key=lambda one: one["copy"]["version"])
        _land(highest["plan"], highest["copy"], known, held, requests, announced_identities)
    return plans


def _land(
    plan: dict[str, Any],
    copy: Mapping[str, Any],
    known: Row | None,
    held: Mapping[int, bytes],
    requests: Requests,
    announced_identities: Identities,
) -> None:
    """Put the row that an id has after its new versions into the plan of the copy with the highest new version."""
    if known is None or copy["version"] > known.version:
        row = Row(
            copy["engagement_id"],
            copy["engagement_date"],
            copy["engagement_ts"],
            copy["person_id"],
            copy["version"],
            content_of(copy),
            {},
        )
    else:
        row = known
    top = row.version if row.source_person_id is None else row.version - 1
    row = replace(row, earlier={version: each for version, each in held.items() if version <= top})
    organization_id = plan["organization_id"]
    patches = requests.patches.get(row.engagement_id, ())
    plan.update(row.columns(organization_id, patches), person_id=_person(organization_id, row, requests.identities))
    plan["target"] = (Target.CHANGESET if known else Target.DATA).value
    if known is not None and row.version == known.version:
        return
    before = _person(organization_id, known, announced_identities) if known else None
    now = _person(organization_id, row, announced_identities)
    plan["verdict"] = (Verdict.UPDATE if known else Verdict.INSERT).value
    plan.update(announced_person_id=now, previous_person_id=before, change_type=change_type(before, now))


def change_type(before: str | None, now: str | None) -> str | None:
    """How readers see a row change its person: None where they see it neither before nor after."""
    if now is None:
        return None if before is None else "DELETE"
    return "INSERT" if before is None else "UPDATE"


def _person(organization_id: str, row: Row, identities: Identities) -> str | None:
    if row.source_person_id is None:
        return None
    return identities.follow(
        organization_id, row.source_person_id, row.engagement_id, row.engagement_ts, row.engagement_date
    )


def _plan(copy: Mapping[str, Any], verdict: Verdict) -> dict[str, Any]:
    names = {"named_id": copy["person_id"], "name": copy["person_name"], "name_ts": copy["engagement_ts"]}
    place = {name: copy[name] for name in ("topic", "partition", "offset", "organization_id")}
    return {**place, "verdict": verdict.value, **names}


def _refused(copy: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """A copy that contradicts what landed; it says nothing about names."""
    plan = _plan(copy, Verdict.QUARANTINE)
    return {**plan, "name": None, "reason_code": reason, "reason": REASONS[reason]}
