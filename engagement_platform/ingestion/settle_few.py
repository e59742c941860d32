"""What becomes of copies of few engagements, decided in this process against the rows that stand.

The same rules as `settle` has for frames. Rows that stand are seen as readers see them: under the identity of now, and
with the content that their event said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.engine.model import Manifest
from engagement_platform.ingestion.settle import COORDINATES, ID, Verdict
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import SUPERSEDED
from engagement_platform.lake.lake import Lake
from engagement_platform.mutation.accepted import Accepted, known_originals, pinned
from engagement_platform.mutation.content import Patch
from engagement_platform.mutation.resolver import Identities

Row = dict[str, Any]
Key = tuple[str, str]
Outcome = tuple[Verdict, str | None, str | None]
"""Verdict, reason code, previous person."""


@dataclass(frozen=True)
class Settled:
    """What becomes of copies."""

    outcomes: dict[int, Outcome]
    """Of those that needed a second look, by their position."""
    replaced: list[Row]
    """The rows that updates replace, with the content that their event said."""


@dataclass(frozen=True)
class StandingAs:
    """What former requests make of rows that stand."""

    accepted: Accepted
    identities: Identities
    patches: Mapping[Key, Sequence[Patch]]

    def seen(self, known: dict[Key, Row]) -> dict[Key, Row]:
        """Known rows with the person that readers see and with the content that their event said."""
        touched = [row for key, row in known.items() if key in self.patches]
        originals = known_originals(self.accepted.lake, self.accepted.manifest, touched)
        for key, row in known.items():
            row.update(originals.get((key, row["version"]), {}))
            if row["organization_id"] in self.accepted.pending:
                place = (row["source_person_id"], row["engagement_id"], row["engagement_ts"], row["engagement_date"])
                row["person_id"] = self.identities.follow(row["organization_id"], *place)
        return known


def settle_copies(lake: Lake, data: Table, manifest: Manifest, accepted: pa.Table, former: StandingAs) -> Settled:
    """Outcomes of the copies whose id is known, repeated or above version 1, by their position in `accepted`."""
    if not accepted.num_rows:
        return Settled({}, [])
    version = manifest.table_versions[data.name]
    keys = list(zip(*(accepted.column(name).to_pylist() for name in ID), strict=True))
    versions = accepted.column("version").to_pylist()
    copies: dict[Key, list[int]] = defaultdict(list)
    for nth, key in enumerate(keys):
        copies[key].append(nth)
    where = {
        "organization_id": distinct(accepted, "organization_id"),
        "engagement_date": distinct(accepted, "engagement_date"),
        "engagement_id": distinct(accepted, "engagement_id"),
    }
    found = {key_of(row) for row in lake.find(data, version, ID, where).to_pylist()} & copies.keys()
    raised = {key for key, of_key in copies.items() if max(versions[nth] for nth in of_key) > 1}
    repeated = {key for key, of_key in copies.items() if len(of_key) > 1}
    doubtful = found | raised | repeated
    if not doubtful:
        return Settled({}, [])
    # On the day of the copies first; a version above 1 says that the id was seen before, so then on all days.
    known = _standing(lake, data, version, found, where["engagement_date"])
    known |= _standing(lake, data, version, raised - found, None)
    known = former.seen(known)
    positions = sorted(nth for key in doubtful for nth in copies[key])
    rows = dict(zip(positions, accepted.take(pa.array(positions, pa.int64())).to_pylist(), strict=True))
    lower = {key for key, row in known.items() if min(versions[nth] for nth in copies[key]) < row["version"]}
    superseded = _superseded(lake, manifest, lower)
    outcomes: dict[int, Outcome] = {}
    replaced = []
    for key in sorted(doubtful):
        found_of = settle_id({nth: rows[nth] for nth in copies[key]}, known.get(key), superseded[key])
        if any(verdict is Verdict.UPDATE for verdict, *_ in found_of.values()):
            replaced.append(known[key])
        outcomes |= found_of
    return Settled(outcomes, replaced)


def settle_id(copies: Mapping[int, Row], known: Row | None, superseded: Sequence[Row] = ()) -> dict[int, Outcome]:
    """One outcome per copy of one id, as `settle.settle` decides it.

    copies: name -> row with the coordinates, engagement_date, version, person_id, engagement_ts and content.
    known: the row that stands, or None. superseded: what lower versions said, the first of each first.
    """
    in_order = sorted(copies, key=lambda nth: tuple(copies[nth][name] for name in COORDINATES))
    day = known["engagement_date"] if known else copies[in_order[0]]["engagement_date"]
    counts_as: dict[int, tuple[object, ...]] = {}
    if known:
        for row in superseded:
            # Not of versions above: those can only be from a batch that was let go before it finished.
            if row["version"] < known["version"]:
                counts_as.setdefault(row["version"], _content(row, row["source_person_id"]))
        counts_as[known["version"]] = _content(known, known["source_person_id"])
    outcomes: dict[int, Outcome] = {}
    new: dict[int, int] = {}
    for nth in in_order:
        copy = copies[nth]
        said = _content(copy, copy["person_id"])
        is_first = copy["version"] not in counts_as
        if copy["engagement_date"] != day:
            outcomes[nth] = (Verdict.QUARANTINE, "moved_in_time", None)
        elif counts_as.setdefault(copy["version"], said) != said:
            outcomes[nth] = (Verdict.QUARANTINE, "version_conflict", None)
        else:
            outcomes[nth] = (Verdict.SUPERSEDED if is_first else Verdict.DUPLICATE, None, None)
            if is_first and (known is None or copy["version"] > known["version"]):
                new[copy["version"]] = nth
    if new:
        landing = new[max(new)]
        outcomes[landing] = (Verdict.UPDATE, None, known["person_id"]) if known else (Verdict.INSERT, None, None)
    return outcomes


def _content(row: Row, person: str) -> tuple[object, ...]:
    attributes = row["attributes"]
    entries = None if attributes is None else frozenset(dict(attributes).items())
    return person, row["engagement_ts"], row["type"], row["channel"], row["subject"], entries


def _standing(lake: Lake, data: Table, version: int, ids: set[Key], days: Sequence[date] | None) -> dict[Key, Row]:
    """The rows that stand for these ids, on these days or on any."""
    if not ids:
        return {}
    where: dict[str, Sequence[object]] = {
        "organization_id": sorted({organization for organization, _ in ids}),
        "engagement_id": sorted({engagement for _, engagement in ids}),
    }
    if days is not None:
        where["engagement_date"] = days
    columns = (*ID, "engagement_date", "engagement_ts", "version", "person_id", "source_person_id", "engagement")
    standing: dict[Key, Row] = {}
    for row in _flattened(lake.find(data, version, columns, where)):
        key = key_of(row)
        # One row per id is an invariant; should it be broken, the newest decides and the uniqueness check tells.
        if key in ids and (key not in standing or row["version"] > standing[key]["version"]):
            standing[key] = row
    return standing


def _superseded(lake: Lake, manifest: Manifest, ids: set[Key]) -> dict[Key, list[Row]]:
    """What versions of these ids said that landed and do not stand, the first of each version first."""
    found: dict[Key, list[Row]] = defaultdict(list)
    if not ids:
        return found
    where = {
        "organization_id": sorted({organization for organization, _ in ids}),
        "engagement_id": sorted({engagement for _, engagement in ids}),
    }
    rows = _flattened(lake.find(SUPERSEDED, pinned(manifest, SUPERSEDED), SUPERSEDED.column_names, where))
    for row in sorted(rows, key=lambda row: row["batch_sequence"]):
        found[key_of(row)].append(row)
    return found


def _flattened(rows: pa.Table) -> Iterator[Row]:
    for row in rows.to_pylist():
        yield {**row, **row["engagement"]}


def key_of(row: Row) -> Key:
    """organization_id and engagement_id."""
    return row["organization_id"], row["engagement_id"]


def distinct(table: pa.Table, column: str) -> list[Any]:
    """Values of a column but null, sorted."""
    return sorted(value for value in pc.unique(table.column(column)).to_pylist() if value is not None)
