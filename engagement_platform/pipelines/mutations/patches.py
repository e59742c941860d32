"""What an engagement says after its patches: one engagement at a time, in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import NamedTuple


class Content(NamedTuple):
    """The struct `engagement` of a row of the Data Table, in the order of its fields."""

    type: str
    channel: str | None
    subject: str | None
    attributes: Mapping[str, str] | None


class Patch(NamedTuple):
    """One accepted UPDATE of an engagement, as a row of `engagement/mutation_request` has it."""

    request_id: str
    execution_ts: datetime
    """UTC. Only an engagement whose engagement_ts is strictly earlier is patched."""
    type: str | None
    """None: stays."""
    channel: str | None
    """None: stays, unless it is in set_null."""
    subject: str | None
    """None: stays, unless it is in set_null."""
    attributes: Mapping[str, str | None] | None
    """Keys to set, and with None to remove; even when empty it makes null attributes a map. None: they stay."""
    set_null: frozenset[str]
    """Which of channel and subject are cleared."""


def patched(original: Content, engagement_ts: datetime, patches: Iterable[Patch]) -> Content:
    """The content of one engagement after all patches that apply to it, in whatever order they are given.

    original: of its highest version, as it came, never patched: a late patch belongs between earlier ones.
    engagement_ts: UTC. patches: all of this engagement. They go by (execution_ts, request_id); of several with the same
    request_id the first counts, even where it is too early and another one would not be.
    """
    first: dict[str, Patch] = {}
    for patch in patches:
        first.setdefault(patch.request_id, patch)
    content = original
    for patch in sorted(first.values(), key=attrgetter("execution_ts", "request_id")):
        if patch.execution_ts <= engagement_ts:
            continue
        channel = content.channel if patch.channel is None else patch.channel
        subject = content.subject if patch.subject is None else patch.subject
        attributes = content.attributes
        if patch.attributes is not None:
            merged = {**(attributes or {}), **patch.attributes}
            attributes = {key: value for key, value in merged.items() if value is not None}
        content = Content(
            content.type if patch.type is None else patch.type,
            None if "channel" in patch.set_null else channel,
            None if "subject" in patch.set_null else subject,
            attributes,
        )
    return content
