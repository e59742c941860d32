"""What the tables hold after any engagements and requests: one loop over the messages in the order of their times.

Plain Python that imports nothing from the code under test; slow on purpose where fast would need a thought.
Messages are dicts as on the topics, that decoding accepts (a self-conversion, which it refuses, does nothing here).

How the loop goes. Copies that contradict an earlier one are put aside first (`landed`), the only step that looks at
the order of arrival. Then everything happens at its own time: engagements at engagement_ts, requests at
(execution_ts, request_id). At equal times requests come first, because a request applies to engagements that are
strictly earlier. An engagement enters the table as its highest version, whenever that came in; a request changes
or removes the rows that stand there.

What the rules of names leave open, and the reading taken. Each makes the names a function of the set of messages.

- A name that an engagement carries happens at its engagement_ts, just as its row does, whichever version carried it,
  whether or not that version won, and whether or not the row is deleted. So one said before a CONVERT is handed
  on, though its message comes in later, and one said at or after it stays with from_id, as its row does.
- A CONVERT hands on the newest name that from_id has at that moment, in the order of the loop, so a name that was
  handed to it before, too: handing on is a cascade.
- What is handed on competes in to_id as it would have in from_id: by the time it was said, a RENAME before an
  engagement, the greater request_id between RENAMEs, the larger name between engagements.
- A DELETE of a person takes the row of that id, with whatever it was handed. Rows of ids that were converted to it
  stay, as from_id's row does after a CONVERT, and a later CONVERT may hand the id a name older than the DELETE.
- Only a DELETE with from_id alone takes a name; one with an engagement_id or a range end removes engagements only.

And of patches: attributes in a patch make the row's attributes an object, if only an empty one; a patch with null
attributes, or without, leaves them. A null type is the same as none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

Message = dict[str, Any]
Key = tuple[str, str]
"""organization_id, and an id within it."""

_ENGAGEMENT_FIELDS = ("person_id", "type", "channel", "subject", "attributes")
_RANGE = ("engagement_id", "engagement_date_from", "engagement_date_to")
_USED = {
    "CONVERT": ("from_id", "to_id", *_RANGE),
    "DELETE": ("from_id", *_RANGE),
    "RENAME": ("from_id", "name"),
    "UPDATE": ("engagement_id", "type", "channel", "subject", "attributes"),
}


@dataclass
class Row:
    """A row of the Data Table."""

    person_id: str
    source_person_id: str
    engagement_ts: datetime
    version: int
    type: str
    channel: str | None
    subject: str | None
    attributes: dict[str, str] | None

    @property
    def engagement_date(self) -> date:
        """UTC date of engagement_ts."""
        return self.engagement_ts.date()


@dataclass(frozen=True, order=True)
class Said:
    """A name and what decides between two: the greater is the newer."""

    name_ts: datetime
    by_rename: bool
    request_id: str
    """Of the RENAME; empty for an engagement."""
    name: str


@dataclass
class Tables:
    """What stands in the end."""

    data: dict[Key, Row] = field(default_factory=dict)
    """By organization_id and engagement_id. Deleted engagements are absent."""
    names: dict[Key, tuple[str, datetime]] = field(default_factory=dict)
    """By organization_id and person id: name, name_ts."""
    refused: dict[int, str] = field(default_factory=dict)
    """Place among the messages -> version_conflict, moved_in_time or request_conflict."""


def replay(messages: Sequence[Message]) -> Tables:
    """The tables after these messages came in, in this order."""
    taken, refused = landed(messages)
    tables = Tables(refused=refused)
    names: dict[Key, Said] = {}
    highest: dict[Key, int] = {}
    for message in taken:
        if not is_request(message):
            highest[engagement_key(message)] = max(version_of(message), highest.get(engagement_key(message), 0))
    for message in sorted(taken, key=moment):
        if is_request(message):
            _execute(message, tables.data, names)
            continue
        _say_name(message, names)
        if version_of(message) == highest[engagement_key(message)]:
            tables.data[engagement_key(message)] = as_row(message)
    tables.names = {key: (said.name, said.name_ts) for key, said in names.items()}
    return tables


def landed(messages: Sequence[Message]) -> tuple[list[Message], dict[int, str]]:
    """The messages without those that contradict an earlier one; and the places and reasons of those.

    The day of an engagement is the day of the first copy that lands. Known duplicates are among what landed.
    """
    contents: dict[tuple[str, str, int | str], tuple[Any, ...]] = {}
    days: dict[Key, date] = {}
    taken: list[Message] = []
    refused: dict[int, str] = {}
    for place, message in enumerate(messages):
        organization = message["organization_id"]
        if is_request(message):
            if message["operation"] == "CONVERT" and message["from_id"] == message["to_id"]:
                # Refused by decoding, so it claims no request_id.
                continue
            said = request_content(message)
            if contents.setdefault((organization, "request", message["request_id"]), said) != said:
                refused[place] = "request_conflict"
                continue
        else:
            engagement_id, day = message["engagement_id"], time_of(message["engagement_ts"]).date()
            if days.setdefault((organization, engagement_id), day) != day:
                refused[place] = "moved_in_time"
                continue
            said = engagement_content(message)
            if contents.setdefault((organization, f"engagement {engagement_id}", version_of(message)), said) != said:
                refused[place] = "version_conflict"
                continue
        taken.append(message)
    return taken, refused


def moment(message: Message) -> tuple[datetime, bool, str]:
    """When a message happens: by time, requests before engagements, requests by id."""
    if is_request(message):
        return time_of(message["execution_ts"]), False, message["request_id"]
    return time_of(message["engagement_ts"]), True, ""


def as_row(engagement: Message) -> Row:
    """An engagement as it enters the table."""
    attributes = engagement.get("attributes")
    return Row(
        person_id=engagement["person_id"],
        source_person_id=engagement["person_id"],
        engagement_ts=time_of(engagement["engagement_ts"]),
        version=version_of(engagement),
        type=engagement["type"],
        channel=engagement.get("channel"),
        subject=engagement.get("subject"),
        attributes=None if attributes is None else dict(attributes),
    )


def _say_name(engagement: Message, names: dict[Key, Said]) -> None:
    if engagement.get("person_name") is not None:
        said = Said(time_of(engagement["engagement_ts"]), False, "", engagement["person_name"])
        _say(names, (engagement["organization_id"], engagement["person_id"]), said)


def _execute(request: Message, data: dict[Key, Row], names: dict[Key, Said]) -> None:
    """A request happens to what stands now."""
    organization, operation = request["organization_id"], request["operation"]
    if operation == "RENAME":
        said = Said(time_of(request["execution_ts"]), True, request["request_id"], request["name"])
        _say(names, (organization, request["from_id"]), said)
    elif operation == "UPDATE":
        row = data.get((organization, request["engagement_id"]))
        if row is not None:
            _patch(row, request)
    elif operation == "CONVERT":
        for row in [row for key, row in data.items() if _touches(request, key, row)]:
            row.person_id = request["to_id"]
        if _whole_person(request) and (organization, request["from_id"]) in names:
            _say(names, (organization, request["to_id"]), names[organization, request["from_id"]])
    else:
        for key in [key for key, row in data.items() if _touches(request, key, row)]:
            del data[key]
        if _whole_person(request):
            names.pop((organization, request["from_id"]), None)


def _touches(request: Message, key: Key, row: Row) -> bool:
    """Whether a CONVERT or DELETE means this row. Every field that is given narrows."""
    organization, engagement_id = key
    first, last = request.get("engagement_date_from"), request.get("engagement_date_to")
    return (
        request["organization_id"] == organization
        and request.get("from_id") in {None, row.person_id}
        and request.get("engagement_id") in {None, engagement_id}
        and (first is None or date.fromisoformat(first) <= row.engagement_date)
        and (last is None or row.engagement_date <= date.fromisoformat(last))
    )


def _whole_person(request: Message) -> bool:
    """A person is named, and no engagement or range of days."""
    narrowing = ("engagement_id", "engagement_date_from", "engagement_date_to")
    return request.get("from_id") is not None and all(request.get(name) is None for name in narrowing)


def _patch(row: Row, request: Message) -> None:
    if request.get("type") is not None:
        row.type = request["type"]
    if "channel" in request:
        row.channel = request["channel"]
    if "subject" in request:
        row.subject = request["subject"]
    if request.get("attributes") is not None:
        merged = {**(row.attributes or {}), **request["attributes"]}
        row.attributes = {key: value for key, value in merged.items() if value is not None}


def _say(names: dict[Key, Said], key: Key, said: Said) -> None:
    names[key] = max(names.get(key, said), said)


def is_request(message: Message) -> bool:
    """A message of `mutation-requests`; otherwise one of `engagements`."""
    return "request_id" in message


def engagement_key(engagement: Message) -> Key:
    """Which row of the Data Table it is about."""
    return engagement["organization_id"], engagement["engagement_id"]


def version_of(message: Message) -> int:
    """A missing version, or a null one, is 1."""
    version: int | None = message.get("version")
    return 1 if version is None else version


def time_of(text: str) -> datetime:
    """An ISO 8601 time with an offset, in UTC."""
    return datetime.fromisoformat(text).astimezone(UTC)


def engagement_content(message: Message) -> tuple[Any, ...]:
    """What two copies of one version must share: person, time and content; the name is apart."""
    return (time_of(message["engagement_ts"]), *(message.get(name) for name in _ENGAGEMENT_FIELDS))


def request_content(message: Message) -> tuple[Any, ...]:
    """What two copies of one request must share: time, operation and the fields that the operation uses.

    A missing field and a null one are the same, but for channel and subject of an UPDATE, which a null clears.
    """
    used = tuple(message.get(name) for name in _USED[message["operation"]])
    cleared = message["operation"] == "UPDATE" and tuple(name in message for name in ("channel", "subject"))
    return (message["operation"], time_of(message["execution_ts"]), *used, cleared)
