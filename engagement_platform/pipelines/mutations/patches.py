"""What an engagement says after its patches: one engagement at a time, in plain Python.

Which requests are patches of which engagement is the caller's; who the engagement belongs to is `identity`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Final, NamedTuple

_ORDER: Final = attrgetter("execution_ts", "request_id")


class Content(NamedTuple):
    """The struct `engagement` of a row of the Data Table, in the order of its fields."""

    type: str
    channel: str | None
    subject: str | None
    attributes: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Patch:
    """One accepted UPDATE, as a row of `engagement/mutation_request` has it."""

    organization_id: str
    request_id: str
    """Unique within an organization."""
    engagement_id: str
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

    original: of its highest version, as it came. engagement_ts: UTC; a patch with the same execution_ts is too early.
    patches: all of this one engagement. They go by (execution_ts, request_id); of several with the same organization
    and request_id the first counts, even where it is too early and another one would not be. A field that a patch
    both clears and gives is cleared; no message does both.
    Always from the original, never from patched content: a patch that comes in late belongs between earlier ones.
    Cost: one sort of the patches. `original` and the maps are left as they are.
    """
    first: dict[tuple[str, str], Patch] = {}
    for patch in patches:
        first.setdefault((patch.organization_id, patch.request_id), patch)
    content = original
    for patch in sorted(first.values(), key=_ORDER):
        if patch.execution_ts > engagement_ts:
            content = _after(content, patch)
    return content


def _after(content: Content, patch: Patch) -> Content:
    return Content(
        type=content.type if patch.type is None else patch.type,
        channel=_replaced("channel", content.channel, patch.channel, patch),
        subject=_replaced("subject", content.subject, patch.subject, patch),
        attributes=content.attributes if patch.attributes is None else _merged(content.attributes, patch.attributes),
    )


def _replaced(field: str, stands: str | None, given: str | None, patch: Patch) -> str | None:
    if field in patch.set_null:
        return None
    return stands if given is None else given


def _merged(stands: Mapping[str, str] | None, given: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**(stands or {}), **given}
    return {key: value for key, value in merged.items() if value is not None}
