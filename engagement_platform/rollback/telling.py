"""A plan for people and for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from engagement_platform.rollback.plan import Plan, shown


def told(plan: Plan, differing: Mapping[str, int] | None = None) -> Iterator[str]:
    """A plan, line by line. differing: what readers see inserted, updated and deleted, where that was counted."""
    if plan.note:
        yield plan.note
    if not plan.changes and not plan.offsets:
        yield f"Nothing to restore: {plan.asked.table} is there already."
        return
    yield f"All that follows goes back to {plan.boundary}:"
    for change in plan.changes:
        files = change.files
        yield (
            f"  {change.table.name}: version {change.from_version} to {change.to_version}, {files.files_back:,} files "
            f"({files.bytes_back:,} bytes) come back, {files.files_gone:,} ({files.bytes_gone:,} bytes) go"
        )
    if differing is not None:
        yield (
            f"Readers see {differing['inserted']:,} {plan.group.rows} again, {differing['updated']:,} changed, and "
            f"{differing['deleted']:,} no longer."
        )
    for offset in plan.offsets:
        if offset.follows:
            yield f"{offset.job}: goes on from {shown(offset.boundary)} instead of {shown(offset.now)}"
            continue
        what = "are read again" if plan.asked.mode == "replay" else "are given up"
        unit = plan.group.unit
        count = unit if offset.records is None else f"{offset.records:,} {unit}"
        yield f"{offset.job}: {count} {what}, from {shown(offset.boundary)} to {shown(offset.now)}"
    if plan.undone:
        yield f"Undone: {', '.join(plan.undone)}"
    if plan.by_hand:
        yield f"Not done again by itself, launch it by hand where it is still wanted: {', '.join(plan.by_hand)}"


def as_json(plan: Plan, differing: Mapping[str, int] | None = None) -> dict[str, object]:
    """A plan as one flat object for machines and for the metadata of a run."""
    asked = plan.asked
    return {
        "table": asked.table,
        "to": asked.to.isoformat() if isinstance(asked.to, datetime) else asked.to,
        "mode": asked.mode,
        "reason": asked.reason,
        "boundary": plan.boundary,
        "note": plan.note,
        "changes": [
            {
                "table": change.table.name,
                "from_version": change.from_version,
                "to_version": change.to_version,
                **vars(change.files),
            }
            for change in plan.changes
        ],
        "offsets": [
            {
                "job": offset.job,
                "boundary": dict(offset.boundary),
                "now": dict(offset.now),
                "records": offset.records,
            }
            for offset in plan.offsets
        ],
        "undone": list(plan.undone),
        "by_hand": list(plan.by_hand),
        **(differing or {}),
    }
