"""Sample messages that strict decoding must refuse: one way to break a good message for each of its reason codes.

Left out are the reasons that depend on a setting, such as the size limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engagement_platform.local.content import compact

Fields = Mapping[str, object]
Break = Callable[[Fields], bytes]

# Beyond the most that decoding.max_depth can be set to.
_DEPTH = 250


def _json(fields: Fields, **changed: object) -> bytes:
    return compact({**fields, **changed}).encode()


def _without(fields: Fields, *names: str) -> bytes:
    return compact({name: value for name, value in fields.items() if name not in names}).encode()


def _with_member(fields: Fields, member: bytes) -> bytes:
    return _json(fields)[:-1] + b"," + member + b"}"


INVALID_ENGAGEMENTS: Mapping[str, Break] = {
    "empty": lambda _: b"",
    "not_utf8": lambda fields: _with_member(fields, b'"note":"caf\xe9"'),
    "byte_order_mark": lambda fields: b"\xef\xbb\xbf" + _json(fields),
    "not_json": lambda fields: _json(fields)[:-20],
    "trailing_content": lambda fields: _json(fields) + b' {"a":2}',
    "not_an_object": lambda fields: b"[" + _json(fields) + b"]",
    "duplicate_key": lambda fields: _with_member(fields, b'"type":"said_twice"'),
    "bad_number": lambda fields: _with_member(fields, b'"score":NaN'),
    "unpaired_surrogate": lambda fields: _with_member(fields, rb'"note":"\ud83d"'),
    "too_deep": lambda fields: _with_member(fields, b'"nested":' + b"[" * _DEPTH + b"]" * _DEPTH),
    "missing_field": lambda fields: _without(fields, "person_id"),
    "wrong_type": lambda fields: _json(fields, type=7),
    "empty_id": lambda fields: _json(fields, engagement_id=""),
    "control_character": lambda fields: _json(fields, person_id="lead-\u0007"),
    "blank_end": lambda fields: _json(fields, person_id="lead-1 "),
    "reserved_id": lambda fields: _json(fields, organization_id="__HIVE_DEFAULT_PARTITION__"),
    "bad_time": lambda fields: _json(fields, engagement_ts="yesterday"),
    "time_without_offset": lambda fields: _json(fields, engagement_ts="2026-01-31T23:59:59"),
    "time_out_of_range": lambda fields: _json(fields, engagement_ts="9999-12-31T23:59:59Z"),
    "bad_version": lambda fields: _json(fields, version=0),
}

INVALID_REQUESTS: Mapping[str, Break] = {
    "unknown_operation": lambda fields: _json(fields, operation="UPSERT"),
    "missing_from_id": lambda fields: _json(fields, operation="CONVERT", from_id=None, to_id="contact-1"),
    "missing_to_id": lambda fields: _json(fields, operation="CONVERT", from_id="lead-1", to_id=None),
    "missing_name": lambda fields: _json(fields, operation="RENAME", from_id="lead-1", name=None),
    "missing_engagement_id": lambda fields: _json(fields, operation="UPDATE", engagement_id=None),
    "no_target": lambda fields: _json(fields, operation="DELETE", from_id=None, engagement_id=None),
    "self_conversion": lambda fields: _json(fields, operation="CONVERT", from_id="lead-1", to_id="lead-1"),
    "bad_date": lambda fields: _json(
        fields, operation="DELETE", from_id="lead-1", engagement_date_from="31.01.2026", engagement_date_to=None
    ),
    "reversed_range": lambda fields: _json(
        fields, operation="DELETE", from_id="lead-1", engagement_date_from="2026-02-01", engagement_date_to="2026-01-31"
    ),
    "time_without_offset": lambda fields: _json(fields, execution_ts="2026-01-31T23:59:59"),
}
