"""Replaces records of erased subjects with tombstones that keep only their Kafka coordinates and the reason `erased`.

Who is erased is asked of `pii.tombstones`, by id and never by record; erasing what landed is not done here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeGuard

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.lake.lake import Lake
from engagement_platform.pii.tombstones import ANYWHERE, ENGAGEMENT, PERSON, Tombstones, entity
from engagement_platform.pipelines.engagements.schema import COORDINATES_DDL, arrow_schema
from engagement_platform.pipelines.parts import COORDINATES, kept
from engagement_platform.sources.messages import Reason
from engagement_platform.sources.strict_json import Doubled, read_loosely

Named = Mapping[str, Sequence[str]]
"""Kind of tombstone -> columns that may name one."""

ENGAGEMENTS: Named = {PERSON: ("person_id",), ENGAGEMENT: ("engagement_id",)}
REQUESTS: Named = {PERSON: ("from_id", "to_id"), ENGAGEMENT: ("engagement_id",)}

NO_ALIASES: Mapping[str, str] = {}
_ORGANIZATION = "organization_id"
_STAYS = frozenset({*COORDINATES, "produced_ts", "value_bytes", "unknown_fields"})
_MARK = {"reason_code": Reason.ERASED.value, "reason": Reason.ERASED.sentence}
_ID = ("kind", "within", "id")
_MENTION_DDL = f"{COORDINATES_DDL}, kind string, within string, id string"
_MENTION = arrow_schema(_MENTION_DDL)


def of_entity(name: str, key: str) -> Named:
    """What changes of an entity name."""
    return {entity(name): (key,)}


def withheld(decoded: DataFrame, named: Named, tombstones: Tombstones, lake: Lake) -> DataFrame:
    """Decoded records, those of erased subjects as tombstones. Refused ones are looked into as far as they are JSON.

    decoded: kept. Cost: nothing while nobody is erased; otherwise a Spark job, and the distinct ids in this process.
    """
    if not any(map(tombstones.organizations, named)):
        return decoded
    columns = dict.fromkeys(name for of in named.values() for name in of)
    # A column of this name that is no text is an entity's own attribute; its keys have no organization.
    there = [_ORGANIZATION] if dict(decoded.dtypes).get(_ORGANIZATION) == "string" else []
    rows = decoded.select(*COORDINATES, *there, *columns, "reason_code", "value")
    named_there = kept(rows.mapInArrow(mentions(named, lake.settings.decoding.aliases), _MENTION_DDL))
    gone = erased_among(named_there.select(*_ID).distinct().toArrow(), tombstones)
    if not gone.num_rows:
        return decoded
    same = [F.col(f"named.{name}").eqNullSafe(F.col(f"gone.{name}")) for name in _ID]
    few = F.broadcast(lake.frame(gone)).alias("gone")
    return with_tombstones(decoded, named_there.alias("named").join(few, same, "left_semi"))


def with_tombstones(decoded: DataFrame, places: DataFrame) -> DataFrame:
    """Decoded records, those at these COORDINATES as tombstones."""
    marks = places.select(*COORDINATES).distinct().withColumn("__is_marked", F.lit(True))
    columns = [
        F.col(name)
        if name in _STAYS
        else F.when(F.col("__is_marked").isNull(), F.col(name)).otherwise(F.lit(_MARK.get(name))).alias(name)
        for name in decoded.columns
    ]
    return decoded.join(F.broadcast(marks), list(COORDINATES), "left").select(*columns)


def mentions(
    named: Named, aliases: Mapping[str, str] = NO_ALIASES
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for DataFrame.mapInArrow: whom records name, one row for each id.

    In:  COORDINATES, organization_id where records have one, the columns of `named`, reason_code, value.
    Out: COORDINATES, kind, within (the organization; ANYWHERE where there are none, null where it cannot be read), id.
    aliases: other spellings of fields, and which field each means.
    """

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = []
            for row in batch.to_pylist():
                texts = _of_row(row) if row["reason_code"] is None else texts_of(row["value"], aliases)
                # Of several organizations nobody knows which is meant.
                [within] = texts.get(_ORGANIZATION, ()) if len(texts.get(_ORGANIZATION, ())) == 1 else [None]
                place = {**{at: row[at] for at in COORDINATES}, "within": within if _ORGANIZATION in row else ANYWHERE}
                for kind, columns in named.items():
                    ids = chain.from_iterable(texts.get(name, ()) for name in columns)
                    found += [{**place, "kind": kind, "id": id_} for id_ in ids]
            yield pa.RecordBatch.from_pylist(found, _MENTION)

    return step


def erased_among(ids: pa.Table, tombstones: Tombstones) -> pa.Table:
    """Those of the ids (kind, within, id) that are erased; where nobody knows within which organization, in any."""
    gone = []
    for kind in ids.column("kind").unique().to_pylist():
        everywhere = tombstones.organizations(kind)
        asked = [row for row in ids.to_pylist() if row["kind"] == kind]
        places = [everywhere if row["within"] is None else {row["within"]} for row in asked]
        keys = [{(within, row["id"]) for within in of} for row, of in zip(asked, places, strict=True)]
        erased = tombstones.erased(kind, {key for of in keys for key in of})
        gone += [row for row, of in zip(asked, keys, strict=True) if not erased.isdisjoint(of)]
    return pa.Table.from_pylist(gone, pa.schema([_MENTION.field(name) for name in _ID]))


def texts_of(value: bytes | None, aliases: Mapping[str, str] = NO_ALIASES) -> Mapping[str, Sequence[str]]:
    """The texts of the object that a record is, several of a field that stands twice, be it by another spelling; empty
    where it is none, or no JSON. For records that were refused.

    Without texts that are not Unicode: no id is, and Arrow takes none.
    """
    try:
        record = read_loosely(value or b"")
    except (ValueError, RecursionError):
        return {}
    texts: dict[str, list[str]] = defaultdict(list)
    for name, of in record.items() if isinstance(record, dict) else ():
        every = [each for each in (of.values if isinstance(of, Doubled) else [of]) if _is_unicode(each)]
        for meant in {name, aliases.get(name, name)} if every else ():
            texts[meant] += every
    return texts


def _of_row(row: Mapping[str, Any]) -> dict[str, list[str]]:
    return {name: [of] for name, of in row.items() if of is not None}


def _is_unicode(value: object) -> TypeGuard[str]:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False
