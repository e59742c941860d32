"""What the changes of one key come to, one after the other. Pure functions over rows; no Spark, no I/O.

The view folds changes in Spark (`latest_values`). These rules are for readers of a few keys without a JVM, and for the
check that holds the view against them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engagement_platform.pipelines.profiles.entity import Entity, version_of

Row = Mapping[str, Any]


def state_after(before: Row | None, changes: Sequence[Row], entity: Entity) -> dict[str, Any]:
    """The base's row of one key after its changes: the columns of the base.

    before: its row of the base; None: it has none, then there are changes. changes: its rows of the changeset, in any
    order. They apply in the order of landing; each column takes a value whose version is greater than that of the one
    it has, so of equal versions the first to land stays.
    """
    state = dict(before) if before else {**dict.fromkeys(entity.base.column_names), entity.key: changes[0][entity.key]}
    for change in sorted(changes, key=lambda row: (row["batch_id"], row["partition"], row["offset"])):
        version = change[entity.version]
        state[entity.version] = max(version, state[entity.version] or 0)
        for by, values in _values(change, entity):
            if version > (state[by] or 0):
                state |= {**values, by: version}
    return state


def shown(state: Row, entity: Entity) -> dict[str, Any] | None:
    """The row that readers see; None for a tombstone and for what nobody has inserted."""
    return {name: state[name] for name in entity.view_columns} if state["present"] else None


def _values(change: Row, entity: Entity) -> Iterator[tuple[str, Row]]:
    """Column of a version -> the columns that a change sets with it."""
    op, cleared = change["op"], change["set_null"] or ()
    # Where updates make no rows, they do not keep any either: only an INSERT undoes a DELETE.
    if op != "UPDATE" or entity.unknown_update != "ignore":
        yield "present_version", {"present": op != "DELETE", "present_ts": change["ingestion_ts"]}
    for name in entity.columns:
        if op == "DELETE":
            yield version_of(name), {name: None}
        elif change[name] is not None or name in cleared:
            yield version_of(name), {name: change[name]}
