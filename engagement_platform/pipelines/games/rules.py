"""What becomes of the lines of a batch, over Arrow: each is an event of a declared type, refused, or known already.

Pure functions, run by Spark in `pipe`. What makes a line an event is `decoding`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.lake.arrow import moments, schema_of
from engagement_platform.pipelines.games.decoding import Decoder, Event, Refusal, loosely_read, player_of
from engagement_platform.pipelines.games.event_type import ENVELOPE
from engagement_platform.pipelines.games.registry import Registry

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_ORIGIN = {"source_object": "string", "source_line": "long", "arrived": "timestamp"}
_REFUSED = {"value_bytes": "int", "value": "binary", "reason_code": "string", "reason": "string"}
_ENVELOPE = {column.name: column.type for column in ENVELOPE}
FIELDS = "fields"
"""Column with a struct for each type, null but for that of the event."""
ORDER = ("arrived", "source_object", "source_line")
"""Of copies of an event the first in this order stands."""
PLACE = ("source_object", "source_line")
PLACE_DDL = "source_object string, source_line long"
LANDED_DDL = "event_type string, event_id string, event_ts timestamp"
_BLANKS = b" \t\r\n"
LONGEST_ID = 256
"""Characters; no setting allows longer ones, and keys of the stores have as many."""


def decoded_ddl(types: Registry) -> str:
    """Columns of decoded lines, as Spark reads them."""
    plain = {**_ORIGIN, **_REFUSED, "unknown_fields": "int", "event_type": "string", **_ENVELOPE}
    structs = []
    for name, declared in types.items():
        own = ",".join(f"`{field}`:{of.type}" for field, of in declared.fields.items())
        structs += [f"`{name}`:struct<{own}>"] if own else []
    of_types = f", {FIELDS} struct<{','.join(structs)}>" if structs else ""
    return ", ".join(f"{column} {kind}" for column, kind in plain.items()) + of_types


def decoded_lines(batch: pa.RecordBatch, decode: Decoder, types: Registry, planned: datetime) -> pa.RecordBatch:
    """The lines of a batch with what each is, blank ones left out; columns as `decoded_ddl` says.

    batch: value, _file, _line and _event_ts of each line. planned: when the batch was planned; then an object has
    arrived whose announcement does not say when it did. Of a refused line game_id and player_id are what it says, as
    far as it is JSON.
    """
    keep = [at for at, value in enumerate(batch.column("value").to_pylist()) if value.strip(_BLANKS)]
    batch = batch.take(pa.array(keep, pa.int64()))
    values = batch.column("value").to_pylist()
    # Whole seconds, since listings tell no more, and a replay has to decide as the first reading did.
    arrived = pc.floor_temporal(pc.fill_null(batch.column("_event_ts"), pa.scalar(planned, _TIMESTAMP)), unit="second")
    found = list(map(decode, values, moments(arrived)))
    refusals = [each if isinstance(each, Refusal) else None for each in found]
    kept = [value if refusal and refusal.is_kept else None for value, refusal in zip(values, refusals, strict=True)]
    arrays = {
        # Versions are left out: listings, by which objects are replayed, have none.
        "source_object": pc.replace_substring_regex(batch.column("_file"), r"(?s)\?versionId=.*$", ""),
        "source_line": batch.column("_line"),
        "arrived": arrived,
        "value_bytes": pc.binary_length(batch.column("value")).cast(pa.int32()),
        "value": pa.array(kept, pa.binary()),
        "reason_code": pa.array([refusal and refusal.code for refusal in refusals], pa.string()),
        "reason": pa.array([refusal and refusal.sentence for refusal in refusals], pa.string()),
        "unknown_fields": pa.array(
            [0 if isinstance(each, Refusal) else each.unknown_fields for each in found], pa.int32()
        ),
        "event_type": pa.array([each.event_type for each in found], pa.string()),
    }
    envelopes = [
        _envelope_of(value) if isinstance(each, Refusal) else each.values[: len(ENVELOPE)]
        for each, value in zip(found, values, strict=True)
    ]
    columns = list(zip(*envelopes, strict=True)) if envelopes else [()] * len(ENVELOPE)
    schema = schema_of(next(iter(types.values())).table, *_ENVELOPE)
    arrays |= {field.name: pa.array(column, field.type) for field, column in zip(schema, columns, strict=True)}
    structs = _fields([each if isinstance(each, Event) else None for each in found], types)
    if structs is not None:
        arrays[FIELDS] = structs
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def repeated(events: pa.Table, landed: pa.Table, window: timedelta) -> pa.Table:
    """The places of the events whose id has landed within the window; of copies among them all but the first in ORDER.

    events: at least event_type, event_id, event_ts and ORDER. landed: columns of LANDED_DDL, at least all events with
    one of the ids whose time may be near. Two events of one type with one id are the same when their times are at most
    `window` apart, exactly that included.
    """
    events = events.sort_by([(name, "ascending") for name in ORDER])
    reach = window // timedelta(microseconds=1)
    times: dict[tuple[str, str], list[int]] = defaultdict(list)
    for key, time in _keyed(landed):
        times[key].append(time)
    again = []
    for key, time in _keyed(events):
        known = times[key]
        again.append(any(abs(time - each) <= reach for each in known))
        if not again[-1]:
            known.append(time)
    return events.filter(pa.array(again, pa.bool_())).select(list(PLACE))


def _keyed(events: pa.Table) -> Iterator[tuple[tuple[str, str], int]]:
    """Type and id, and time in microseconds, of each."""
    types, ids = (events.column(name).to_pylist() for name in ("event_type", "event_id"))
    times = events.column("event_ts").cast(_TIMESTAMP).cast(pa.int64()).to_pylist()
    return zip(zip(types, ids, strict=True), times, strict=True)


def _envelope_of(line: bytes) -> tuple[str | None, ...]:
    """The envelope of a refused line, of which only game and player are read: by them an erasure drops it."""
    found = loosely_read(line)
    fields = found if isinstance(found, dict) else {}
    named = {"game_id": _text(fields.get("game_id")), "player_id": _text(player_of(fields.get("player_id")))}
    return tuple(named.get(name) for name in _ENVELOPE)


def _text(value: object) -> str | None:
    """A text that is Unicode and may be an id; anything else is None."""
    try:
        return value if isinstance(value, str) and len(value) <= LONGEST_ID and value.encode() else None
    except UnicodeEncodeError:
        return None


def _fields(events: Sequence[Event | None], types: Registry) -> pa.StructArray | None:
    """The values of each type's own fields, at the places of its events."""
    rows: dict[str, list[dict[str, object] | None]] = defaultdict(lambda: [None] * len(events))
    for at, event in enumerate(events):
        if event is not None:
            own = event.values[len(ENVELOPE) :]
            rows[event.event_type][at] = dict(zip(types[event.event_type].fields, own, strict=True))
    structs = {}
    for name, declared in types.items():
        if declared.fields:
            kind = pa.struct(list(schema_of(declared.table, *declared.fields)))
            structs[name] = pa.array(rows[name], kind) if name in rows else pa.nulls(len(events), kind)
    return pa.StructArray.from_arrays(list(structs.values()), names=list(structs)) if structs else None
