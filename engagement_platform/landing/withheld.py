"""Turns decoded records about somebody who is erased into markers: where they stood, and the reason `erased`.

For rows in this process and in Spark. Who is erased is asked of `pii.tombstones`; erasing what landed is not done here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.lake.lake import Lake
from engagement_platform.landing.batch import COORDINATES
from engagement_platform.pii.tombstones import ANYWHERE, ENGAGEMENT, PERSON, Tombstones, entity
from engagement_platform.sources.messages import Reason

Named = Mapping[str, Sequence[str]]
"""Kind of tombstone -> columns that may name one."""

ENGAGEMENTS: Named = {PERSON: ("person_id",), ENGAGEMENT: ("engagement_id",)}
REQUESTS: Named = {PERSON: ("from_id", "to_id"), ENGAGEMENT: ("engagement_id",)}

NO_ALIASES: Mapping[str, str] = {}
_ORGANIZATION = "organization_id"
_STAYS = frozenset({*COORDINATES, "produced_ts", "value_bytes", "unknown_fields"})
_MARK = {"reason_code": Reason.ERASED.value, "reason": Reason.ERASED.sentence}


def of_entity(name: str, key: str) -> Named:
    """What changes of an entity name."""
    return {entity(name): (key,)}


def withheld(
    decoded: pa.Table, named: Named, tombstones: Tombstones, aliases: Mapping[str, str] = NO_ALIASES
) -> pa.Table:
    """Decoded records, those of erased ones as markers. Refused ones are looked into as far as they are JSON.

    aliases: other spellings of fields, and which field each means.
    """
    if not any(map(tombstones.organizations, named)):
        return decoded
    return as_markers(decoded, _named_here(decoded, named, tombstones, aliases))


def withheld_in_spark(decoded: DataFrame, named: Named, tombstones: Tombstones, lake: Lake) -> DataFrame:
    """As `withheld`, in Spark. decoded: kept. Cost: a job for the ids, and the refused records in this process."""
    if not any(map(tombstones.organizations, named)):
        return decoded
    columns = [name for of in named.values() for name in of]
    there = [_ORGANIZATION] if _ORGANIZATION in decoded.columns else []
    accepted = decoded.where("reason_code IS NULL")
    refused = decoded.where("reason_code IS NOT NULL").select(*COORDINATES, *there, *columns, "reason_code", "value")
    table, aliases = refused.toArrow(), lake.settings.decoding.aliases
    places = table.select(list(COORDINATES)).filter(_named_here(table, named, tombstones, aliases)).to_pylist()
    for kind, of in named.items():
        for name in of:
            organization = F.col(_ORGANIZATION) if there else F.lit(ANYWHERE)
            ids = accepted.select(organization.alias("within"), F.col(name).alias("id")).distinct().toArrow()
            pairs = zip(ids.column("within").to_pylist(), ids.column("id").to_pylist(), strict=True)
            gone = tombstones.erased(kind, {pair for pair in pairs if pair[1] is not None})
            if gone:
                rows = [{"within": within, name: id_} for within, id_ in sorted(gone)]
                few = F.broadcast(lake.frame(pa.Table.from_pylist(rows)))
                placed = accepted.withColumn("within", organization).join(few, ["within", name])
                places += placed.select(*COORDINATES).toArrow().to_pylist()
    return as_markers_in_spark(decoded, places, lake)


def as_markers(decoded: pa.Table, marked: pa.Array) -> pa.Table:
    """Decoded records; of the marked ones (true for each) only where they stood."""
    if not pc.any(marked).as_py():
        return decoded
    for at, name in enumerate(decoded.column_names):
        if name not in _STAYS:
            kind = decoded.schema.field(name).type
            column = decoded.column(name).combine_chunks()
            # By replacing and not by if_else, which takes no maps (pyarrow 26).
            order = pc.if_else(marked, None, pa.array(range(len(column)), pa.int64()))
            emptied = column.take(order)
            if name in _MARK:
                emptied = pc.if_else(marked, pa.scalar(_MARK[name], kind), emptied)
            decoded = decoded.set_column(at, name, emptied)
    return decoded


def as_markers_in_spark(decoded: DataFrame, places: Sequence[Mapping[str, Any]], lake: Lake) -> DataFrame:
    """As `as_markers`, of the records that stand at these places."""
    if not places:
        return decoded
    few = pa.Table.from_pylist([dict(place) for place in places]).group_by(list(COORDINATES)).aggregate([])
    marks = F.broadcast(lake.frame(few)).withColumn("is_marked", F.lit(True))
    joined = decoded.join(marks, list(COORDINATES), "left")
    columns = [
        F.col(name)
        if name in _STAYS
        else F.when(F.col("is_marked").isNull(), F.col(name)).otherwise(F.lit(_MARK.get(name))).alias(name)
        for name in decoded.columns
    ]
    return joined.select(*columns)


def _named_here(decoded: pa.Table, named: Named, tombstones: Tombstones, aliases: Mapping[str, str]) -> pa.Array:
    """Whether each record names somebody who is erased."""
    marked = [False] * decoded.num_rows
    has_organization = _ORGANIZATION in decoded.column_names
    organizations = decoded.column(_ORGANIZATION).to_pylist() if has_organization else [ANYWHERE] * len(marked)
    refused = {
        at: said_in(value, aliases)
        for at, (code, value) in enumerate(
            zip(decoded.column("reason_code").to_pylist(), decoded.column("value").to_pylist(), strict=True)
        )
        if code is not None
    }
    for kind, columns in named.items():
        everywhere = tombstones.organizations(kind)
        for name in columns:
            ids = [{pair} for pair in zip(organizations, decoded.column(name).to_pylist(), strict=True)]
            for at, said in refused.items():
                # Of an organization that cannot be read: whoever is erased in any.
                within = {said[_ORGANIZATION]} if has_organization and _ORGANIZATION in said else everywhere
                ids[at] = {(each, said[name]) for each in within if name in said}
            gone = tombstones.erased(kind, {pair for each in ids for pair in each if pair[1] is not None})
            for at, each in enumerate(ids) if gone else ():
                marked[at] = marked[at] or not gone.isdisjoint(each)
    return pa.array(marked, pa.bool_())


def said_in(value: bytes | None, aliases: Mapping[str, str] = NO_ALIASES) -> Mapping[str, Any]:
    """The object that a record is; empty where it is none, or no JSON. For records that were refused."""
    try:
        said = json.loads(value or b"")
    except (ValueError, RecursionError):
        return {}
    said = {name: of for name, of in said.items() if isinstance(of, str)} if isinstance(said, dict) else {}
    # A field under its own name goes before another spelling of it.
    return {aliases[name]: of for name, of in said.items() if name in aliases} | said
