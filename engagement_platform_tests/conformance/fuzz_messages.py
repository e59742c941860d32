"""What decoders of topics keep to, whatever bytes come: they raise nothing, and each message is either decoded or
refused whole, with a reason. `fuzz` runs the properties for as long as one likes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from engagement_platform.sources.decoded_batches import Step, decode_batches, decode_changes, decode_records
from engagement_platform.sources.messages import ChangeShape, DecodingLimits, RecordShape
from engagement_platform_tests.conformance.fuzz_property import NOW, TS, Property
from engagement_platform_tests.conformance.hostile import damaged, encoded, json_texts, nearly


def _kafka(step: Callable[[], Step], valid: Sequence[Mapping[str, object]]) -> Property:
    """Messages of a topic, a batch at a time."""
    values = st.one_of(
        st.none(),
        encoded(nearly(valid)),
        encoded(json_texts()),
        damaged(encoded(nearly(valid))),
        st.binary(max_size=40),
    )

    def holds(messages: Sequence[bytes | None]) -> None:
        rows = _rows(step(), messages)
        assert [row["offset"] for row in rows] == list(range(len(messages)))
        for row, message in zip(rows, messages, strict=True):
            own = {name: value for name, value in row.items() if name not in _OF_ANY}
            if row["reason_code"] is None:
                assert (row["value"], row["key"], row["reason"]) == (None, None, None)
                assert own["unknown_fields"] is not None
            else:
                assert (row["value"], row["key"]) == (message, b"k"), "a message that is refused is kept whole"
                assert row["reason"]
                assert set(own.values()) <= {None}, "nothing of a message that is refused is taken"
        alone = [row for offset, one in enumerate(messages) for row in _rows(step(), [one], offset)]
        assert repr(rows) == repr(alone), "what a message becomes depends on its neighbours"

    return Property(st.lists(values, min_size=1, max_size=4), holds)


_OF_ANY = frozenset(
    ("topic", "partition", "offset", "produced_ts", "value_bytes", "key", "value", "reason_code", "reason")
)


def _rows(step: Step, messages: Sequence[bytes | None], first: int = 0) -> list[dict[str, Any]]:
    count = len(messages)
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["t"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(first, first + count), pa.int64()),
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array(messages, pa.binary()),
            "timestamp": pa.array([NOW] * count, pa.timestamp("us", "UTC")),
        }
    )
    return [row for made in step(iter([batch])) for row in made.to_pylist()]


_ENGAGEMENT = {
    "engagement_id": "e-1", "organization_id": "org-1", "person_id": "p-1", "engagement_ts": TS, "type": "open",
    "person_name": "Ada", "version": 3, "channel": "email", "subject": "Hello", "attributes": {"campaign": "spring"},
}  # fmt: skip
_ANY_REQUEST = {"request_id": "r-1", "organization_id": "org-1", "execution_ts": TS}
_REQUESTS = (
    {**_ANY_REQUEST, "operation": "CONVERT", "from_id": "a", "to_id": "b", "engagement_date_from": "2026-01-31"},
    {**_ANY_REQUEST, "operation": "DELETE", "from_id": "a"},
    {**_ANY_REQUEST, "operation": "RENAME", "from_id": "a", "name": "Ada"},
    {**_ANY_REQUEST, "operation": "UPDATE", "engagement_id": "e-1", "channel": None, "attributes": {"x": None}},
)
_RECORD = RecordShape(
    columns=(
        ("id", "string"), ("at", "timestamp"), ("text", "string"), ("count", "long"), ("price", "double"),
        ("ok", "boolean"), ("day", "date"), ("paid", "decimal(5,2)"), ("most", "decimal(38,38)"),
        ("tags", "array<string>"), ("counts", "map<string,long>"), ("by", "map<string,array<date>>"),
        ("place", "struct<city:string,seen:array<struct<at:timestamp,by:string>>>"),
    ),
    required=frozenset({"id", "at"}), ids=frozenset({"id"}), event_time="at",
)  # fmt: skip
_MESSAGE = {
    "id": "a", "at": TS, "text": " x ", "count": -3, "price": 2, "ok": False, "day": "2026-01-31", "paid": "9.99",
    "most": 0.5, "tags": ["b", None], "counts": {"z": 1, "a": None}, "by": {"d": ["2026-01-31"]},
    "place": {"city": "Ulm", "seen": [{"at": TS, "more": 1}, None, {}]},
}  # fmt: skip
_CHANGE = ChangeShape(
    "profile_id", "version",
    (("name", "string"), ("born", "date"), ("points", "long"), ("ratio", "double"), ("vip", "boolean"),
     ("seen", "timestamp"), ("country", "string")),
    frozenset({"country"}),
)  # fmt: skip
_CHANGES = (
    {"profile_id": "p", "version": 1, "op": "INSERT", "changes": {"name": "Ada", "born": "1815-12-10", "points": 3}},
    {"profile_id": "p", "version": 2, "op": "UPDATE", "changes": {"seen": TS}, "set_null": ["name", "other"]},
    {"profile_id": "p", "version": 3, "op": "DELETE"},
)
_LIMITS = DecodingLimits()

MESSAGES: Mapping[str, Property] = {
    "Kafka: engagements": _kafka(lambda: decode_batches("engagement", _LIMITS, NOW), [_ENGAGEMENT]),
    "Kafka: requests": _kafka(lambda: decode_batches("mutation_request", _LIMITS, NOW), _REQUESTS),
    "Kafka: declared streams": _kafka(lambda: decode_records(_RECORD, _LIMITS, NOW), [_MESSAGE]),
    "Kafka: declared entities": _kafka(lambda: decode_changes(_CHANGE, _LIMITS, NOW), _CHANGES),
}
