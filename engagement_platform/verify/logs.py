"""Compares names and patched contents with what follows from the logs, in plain Python, some organizations at a time.

The rules are those of `mutation.names` and `mutation.content`; nothing here knows how batches came to their rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from engagement_platform.lake import log
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, AMENDMENT, MAPPING, ORIGINAL, SAID_NAME, data_table
from engagement_platform.lake.erased import is_pseudonym
from engagement_platform.lake.lake import Lake
from engagement_platform.mutation.accepted import Id, as_content, edges_of, said_by_engagement, said_by_request
from engagement_platform.pipelines.mutations.name_evidence import names_of
from engagement_platform.pipelines.mutations.patches import Patch, patched
from engagement_platform.pipelines.mutations.requests import Request
from engagement_platform.verify.finding import EXAMPLES, Finding
from engagement_platform.verify.moment import Moment

MOST_ROWS = 200_000
"""Rows of the logs that are in this process at a time, unless one organization has more. About 200 MB (a guess)."""
MOST_ORGANIZATIONS = 500
"""Organizations at a time: each is a literal in a predicate."""

_LOGS = (ALIAS, AMENDMENT, SAID_NAME, MAPPING)

Row = dict[str, Any]


def contents_and_names(lake: Lake, then: Moment, organizations: Sequence[str]) -> list[Finding]:
    """Findings `names` and `contents` of these organizations. Cost: reads their logs, and the rows that are patched."""
    looked_at: Counter[str] = Counter()
    wrong: dict[str, list[str]] = {"names": [], "contents": []}
    for portion in portions(rows_of(lake, then, _LOGS, organizations), MOST_ROWS, MOST_ORGANIZATIONS):
        logs = _Logs(lake, then, portion)
        amendments = [Request.of(row) for row in logs.find(AMENDMENT)]
        for check, (count, bad) in {"names": _names(logs, amendments), "contents": _contents(logs, amendments)}.items():
            looked_at[check] += count
            wrong[check] += ["/".join(key) for key in sorted(bad)]
    meanings = {
        "names": "every name in the mapping is the newest that was said, as requests hand it on",
        "contents": "every patched engagement says what its event and its patches make of it",
    }
    return [
        Finding(check, meaning, looked_at[check], len(wrong[check]), wrong[check][:EXAMPLES])
        for check, meaning in meanings.items()
    ]


def portions(rows: Mapping[str, int], most_rows: int, most_organizations: int) -> Iterator[list[str]]:
    """Organizations in their order, each once, in lists with at most so many rows and organizations.

    An organization that has more rows stands alone.
    >>> list(portions({"a": 5, "b": 5, "c": 1, "d": 20}, 10, 3))
    [['a', 'b'], ['c'], ['d']]
    """
    portion: list[str] = []
    held = 0
    for organization, count in rows.items():
        if portion and (held + count > most_rows or len(portion) == most_organizations):
            yield portion
            portion, held = [], 0
        portion.append(organization)
        held += count
    if portion:
        yield portion


def rows_of(lake: Lake, then: Moment, tables: Sequence[Table], organizations: Sequence[str]) -> dict[str, int]:
    """Organization -> rows that it has in these tables together, as their logs say."""
    held = [log.stored(lake.uri(table), then.versions[table.name], organizations) for table in tables]
    return {name: sum(of[name].rows for of in held) for name in organizations}


class _Logs:
    """Rows of the tables of a moment, of some organizations."""

    def __init__(self, lake: Lake, then: Moment, organizations: Sequence[str]) -> None:
        self.lake, self._then, self._organizations = lake, then, organizations

    def table(self, table: Table, columns: Sequence[str] = (), **where: Sequence[Any]) -> pa.Table:
        """Rows whose columns have one of the given values."""
        within = {"organization_id": self._organizations, **where}
        return self.lake.find(table, self._then.versions[table.name], columns or table.column_names, within)

    def find(self, table: Table, columns: Sequence[str] = (), **where: Sequence[Any]) -> list[Row]:
        """The same as dictionaries."""
        rows: list[Row] = self.table(table, columns, **where).to_pylist()
        return rows


def _names(logs: _Logs, amendments: Sequence[Request]) -> tuple[int, set[Id]]:
    """How many ids were looked at, and those whose name is not what follows, or that stand twice."""
    edges = edges_of(logs.table(ALIAS))
    sayings = [said_by_engagement(row) for row in logs.find(SAID_NAME)]
    sayings += [said_by_request(request) for request in amendments if request.operation == "RENAME"]
    rows = logs.find(MAPPING)
    stands: dict[Id, Any] = {(row["organization_id"], row["id"]): (row["name"], row["name_ts"]) for row in rows}
    times = Counter((row["organization_id"], row["id"]) for row in rows)
    wrong = {key for key, count in times.items() if count > 1}
    ids = stands.keys() | {(saying.organization_id, saying.id) for saying in sayings}
    ids |= {(edge.organization_id, edge.to_id) for edge in edges if edge.to_id is not None}
    ids = {key for key in ids if not is_pseudonym(key[1])}
    follows = names_of(ids, sayings, edges)
    for key in ids:
        said = follows.get(key)
        if stands.get(key, (None, None)) != ((said.name, said.name_ts) if said else (None, None)):
            wrong.add(key)
    return len(ids), wrong


def _contents(logs: _Logs, amendments: Sequence[Request]) -> tuple[int, set[Id]]:
    """How many rows of patched engagements were looked at, and those that say something else."""
    patches: dict[Id, list[Patch]] = {}
    for request in amendments:
        if request.operation == "UPDATE":
            patches.setdefault((request.organization_id, request.engagement_id or ""), []).append(request.patch())
    originals: dict[tuple[str, str, int], Any] = {
        (*_key(row), row["version"]): row["engagement"] for row in logs.find(ORIGINAL)
    }
    touched = patches.keys() | {(organization, engagement) for organization, engagement, _ in originals}
    if not touched:
        return 0, set()
    columns = ("organization_id", "engagement_id", "engagement_ts", "version", "engagement")
    data = data_table(logs.lake.settings.layout.scheme)
    rows = logs.find(data, columns, engagement_id=sorted({engagement for _, engagement in touched}))
    looked_at = 0
    wrong: set[Id] = set()
    for row in rows:
        key = _key(row)
        if key not in touched:
            continue
        looked_at += 1
        # Without an original the row says what its event said, and no patch changes that.
        original: Row = originals.get((*key, row["version"])) or row["engagement"]
        follows = patched(as_content(original), row["engagement_ts"], patches.get(key, ()))
        if follows != as_content(row["engagement"]):
            wrong.add(key)
    return looked_at, wrong


def _key(row: Row) -> Id:
    return row["organization_id"], row["engagement_id"]
