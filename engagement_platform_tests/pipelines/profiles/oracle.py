"""What readers should see after some changes: a sequential replay in plain Python that anybody believes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engagement_platform.pipelines.profiles.entity import Entity

Row = tuple[Any, ...]
"""Key, version, attributes: as the view shows them."""


@dataclass(frozen=True)
class Said:
    """One change as its message says it."""

    key: str
    version: int
    op: str
    changes: dict[str, Any] = field(default_factory=dict)
    set_null: tuple[str, ...] = ()

    def message(self, entity: Entity) -> dict[str, Any]:
        """As it stands on the topic."""
        said: dict[str, Any] = {entity.key: self.key, entity.version: self.version, "op": self.op}
        if self.op != "DELETE":
            said["changes"] = self.changes
        return said | ({"set_null": list(self.set_null)} if self.set_null else {})


def replay(landed: Sequence[Said], entity: Entity) -> list[Row]:
    """Apply changes by version, one after the other; of equal versions the first to land comes last and stays.

    landed: in the order of landing. Sorted by key.
    """
    alive: dict[str, bool] = {}
    values: dict[str, dict[str, Any]] = {}
    newest: dict[str, int] = {}
    order = sorted(range(len(landed)), key=lambda place: (landed[place].version, -place))
    for change in (landed[place] for place in order):
        row = values.setdefault(change.key, dict.fromkeys(entity.columns))
        newest[change.key] = change.version
        if change.op == "DELETE":
            alive[change.key] = False
            row.update(dict.fromkeys(entity.columns))
            continue
        row.update({name: value for name, value in change.changes.items() if value is not None})
        row.update(dict.fromkeys(change.set_null))
        if change.op == "INSERT" or entity.unknown_update != "ignore":
            alive[change.key] = True
    return [(key, newest[key], *values[key].values()) for key in sorted(values) if alive.get(key)]


def rows_of(found: Iterable[Any], entity: Entity) -> list[Row]:
    """Rows of a view (dicts) as the oracle has them."""
    return sorted((tuple(row[name] for name in entity.view_columns) for row in found), key=lambda row: str(row[0]))
