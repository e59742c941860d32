"""Engagements, names and conversions for the benchmark of mutations: made from a seed, the same each time.

Arithmetic and Arrow tables only; writing them to a lake and measuring is `mutation_ways`.

Proportions of the source: 1.5 billion engagements of 4,830 organizations, 5.4 million requests that touch 1.3 billion
of them. So 3.6 requests come with 1,000 engagements, 241 engagements are touched by each, 87 % of all. Organizations
share the rows as they share a day's traffic: nine of ten are small, the largest has three quarters of all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from random import Random

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import MAPPING, data_table
from engagement_platform.local.content import contents, full_name
from engagement_platform.local.traffic import organizations

DATA = data_table("liquid")
ENGAGEMENTS, REQUESTS, TOUCHED = 1_500_000_000, 5_400_000, 1_300_000_000
PER_REQUEST = TOUCHED / REQUESTS
CHAINED_PERCENT = 30
LONGEST = 4
BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
EXECUTED_AFTER = timedelta(hours=1)

Counts = npt.NDArray[np.int64]
Person = tuple[str, str]
"""organization_id, and an id within it."""
Tally = dict[Person, tuple[int, int]]
"""Of each person: engagements, and the sum of their numbers, by which they can be told from others."""

_CAMPAIGNS = ("spring-launch", "win-back", "nurture-7", "autumn-webinar")
_URLS = ("/pricing", "/docs/start?utm=mail", "/blog/ten-ways-to-grow", "/customers/stories/4711")


@dataclass(frozen=True)
class Scale:
    """How much there is.

    days: engagements are spread evenly over so many. named_percent: of the engagements that say a name; the first one
    of each person says it in any case.
    """

    rows: int
    organizations: int = 48
    days: int = 365
    named_percent: int = 0
    seed: int = 20201120


@dataclass(frozen=True)
class Share:
    """What an organization has of it all."""

    organization_id: str
    rows: int
    requests: int
    touched: int


@dataclass(frozen=True)
class Conversion:
    """One request; `hop` counts from 0 within its chain."""

    organization_id: str
    from_id: str
    to_id: str
    hop: int


@dataclass(frozen=True)
class Members:
    """The persons of an organization that have engagements, how many each, and the conversions of the first of them."""

    share: Share
    persons: tuple[str, ...]
    rows: Counts
    conversions: tuple[Conversion, ...]


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """`total` in whole parts by weight, by the largest remainders; they sum up to `total`.

    >>> apportion(10, [1, 1, 1])
    [4, 3, 3]
    """
    exact = np.asarray(weights, float) / float(np.sum(weights)) * total
    parts = np.floor(exact).astype(int)
    last = np.argsort(parts - exact, kind="stable")[: total - int(parts.sum())]
    parts[last] += 1
    return [int(part) for part in parts]


def shares(scale: Scale) -> list[Share]:
    """Rows, requests and touched rows of each organization of the traffic model.

    Requests follow the rows; an organization that is too small for its requests has all its rows touched.
    """
    of = organizations(scale.organizations, 1)
    rows = apportion(scale.rows, [one.engagements_per_day for one in of])
    requests = apportion(round(scale.rows * REQUESTS / ENGAGEMENTS), rows)
    return [
        Share(one.id, have, asked, min(have, round(asked * PER_REQUEST)))
        for one, have, asked in zip(of, rows, requests, strict=True)
    ]


class DataSet:
    """All of it at one scale. Rows are made when they are asked for, organization by organization."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.members = [
            _members(share, np.random.default_rng([scale.seed, n])) for n, share in enumerate(shares(scale))
        ]
        self.conversions = [conversion for members in self.members for conversion in members.conversions]
        self.executed = BEGIN + timedelta(days=scale.days) + EXECUTED_AFTER
        self.hops_apart = timedelta(minutes=1)

    @cached_property
    def ends(self) -> Mapping[Person, str]:
        """Where each id that is converted ends."""
        hops = {(c.organization_id, c.from_id): c.to_id for c in self.conversions}
        found = {}
        for (organization, first), to_id in hops.items():
            end = to_id
            while (organization, end) in hops:
                end = hops[organization, end]
            found[organization, first] = end
        return found

    @cached_property
    def touched(self) -> int:
        """Engagements whose person changes."""
        return sum(
            int(count)
            for members in self.members
            for person, count in zip(members.persons, members.rows, strict=True)
            if (members.share.organization_id, person) in self.ends
        )

    def rows(self) -> Iterator[pa.Table]:
        """The Data Table's rows of each organization, by time; batch_id is 0."""
        first = 0
        for n, members in enumerate(self.members):
            yield _rows(members, self.scale, first, np.random.default_rng([self.scale.seed, n, 1]))
            first += members.share.rows

    def names(self, rows: pa.Table) -> pa.Table:
        """What rows of one organization say of names: rows of `engagement/mapping` that nothing has folded."""
        codes = rows.column("source_person_id").combine_chunks().dictionary_encode()
        of = codes.indices.to_numpy()
        says = np.random.default_rng([self.scale.seed, len(of)]).random(len(of)) * 100 < self.scale.named_percent
        says[np.unique(of, return_index=True)[1]] = True
        said = rows.filter(pa.array(says))
        names = pa.array([full_name(_number(person)) for person in codes.dictionary.to_pylist()])
        columns = {
            "organization_id": said.column("organization_id"),
            "id": said.column("source_person_id"),
            "name": names.take(pa.array(of[says])),
            "name_ts": said.column("engagement_ts"),
            "batch_id": said.column("batch_id"),
            "batch_sequence": pa.repeat(pa.scalar(-1, pa.int64()), said.num_rows),
        }
        return _of_table(columns, MAPPING)

    def conversion_requests(self) -> list[Mapping[str, str]]:
        """The conversions as messages, in no order; a chain's hops are `hops_apart`."""
        order = np.random.default_rng(self.scale.seed).permutation(len(self.conversions))
        return [
            {
                "request_id": f"convert-{n:07d}",
                "organization_id": self.conversions[n].organization_id,
                "operation": "CONVERT",
                "from_id": self.conversions[n].from_id,
                "to_id": self.conversions[n].to_id,
                "execution_ts": (self.executed + self.conversions[n].hop * self.hops_apart).isoformat(),
            }
            for n in map(int, order)
        ]

    @property
    def renamed(self) -> Person:
        """Whom the rename is about: the person with most engagements in the largest organization."""
        largest = max(self.members, key=lambda members: members.share.rows)
        return largest.share.organization_id, largest.persons[int(np.argmax(largest.rows))]

    def rename_request(self, name: str) -> Mapping[str, str]:
        """One RENAME as a message."""
        organization, person = self.renamed
        request = {"request_id": "rename-0", "organization_id": organization, "operation": "RENAME", "from_id": person}
        return {**request, "name": name, "execution_ts": self.executed.isoformat()}


def tally(rows: pa.Table, person: str, ends: Mapping[Person, str] | None = None) -> Tally:
    """Count rows by the id in column `person`, or by where that id ends."""
    numbers = pc.utf8_slice_codeunits(rows.column("engagement_id"), len(_ENGAGEMENT)).cast(pa.int64())
    counted = pa.table(
        {"organization_id": rows.column("organization_id"), "person": rows.column(person), "number": numbers}
    )
    counted = counted.group_by(["organization_id", "person"]).aggregate([("number", "count"), ("number", "sum")])
    found: Tally = {}
    for row in counted.to_pylist():
        key = row["organization_id"], row["person"]
        end = key[0], (ends or {}).get(key, key[1])
        count, total = found.get(end, (0, 0))
        found[end] = count + row["number_count"], total + row["number_sum"]
    return found


_ENGAGEMENT = "eng-"


def _number(person: str) -> int:
    return int(person.rpartition("-")[2])


def _members(share: Share, rng: np.random.Generator) -> Members:
    left = share.rows - share.touched
    others = max(1, round(left / PER_REQUEST)) if left else 0
    leads = [f"lead-{n:06d}" for n in range(share.requests)]
    contacts = [f"contact-{n:06d}" for n in range(others)]
    counts = [*_spread(share.touched, share.requests, rng), *_spread(left, others, rng)]
    conversions = tuple(_conversions(share.organization_id, leads, contacts, rng))
    return Members(share, (*leads, *contacts), np.array(counts, np.int64), conversions)


def _spread(rows: int, persons: int, rng: np.random.Generator) -> list[int]:
    """Some persons are busier than others; everybody has something while there is enough."""
    if not persons:
        return []
    each = min(1, rows // persons)
    return [each + more for more in apportion(rows - each * persons, rng.lognormal(sigma=0.8, size=persons).tolist())]


def _conversions(
    organization: str, leads: Sequence[str], contacts: Sequence[str], rng: np.random.Generator
) -> Iterator[Conversion]:
    """Each lead becomes a contact that is there or a new one; some are merged into one another before."""
    done = 0
    while done < len(leads):
        chained = rng.random() < _chain_share() and len(leads) - done > 1
        length = min(int(rng.integers(2, LONGEST + 1)), len(leads) - done) if chained else 1
        there = contacts and rng.random() < 0.5
        end = contacts[int(rng.integers(len(contacts)))] if there else f"merged-{done:06d}"
        ids = [*leads[done : done + length], end]
        for hop in range(length):
            yield Conversion(organization, ids[hop], ids[hop + 1], hop)
        done += length


def _chain_share() -> float:
    """Of chains and single requests together, so many are chains when CHAINED_PERCENT of the requests are in chains."""
    chains, mean = CHAINED_PERCENT, (2 + LONGEST) / 2
    return chains / mean / (chains / mean + 100 - chains)


def _rows(members: Members, scale: Scale, first: int, rng: np.random.Generator) -> pa.Table:
    count = members.share.rows
    moments = np.sort(rng.integers(0, scale.days * 86_400_000_000, count)) + int(BEGIN.timestamp()) * 1_000_000
    times = pa.array(moments, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    persons = pa.array(members.persons, pa.string()).take(
        pa.array(rng.permutation(np.repeat(np.arange(len(members.persons)), members.rows)))
    )
    numbers = pa.array(np.arange(first, first + count)).cast(pa.string())
    columns = {
        "organization_id": pa.repeat(members.share.organization_id, count),
        "engagement_date": times.cast(pa.date32()),
        "engagement_ts": times,
        "engagement_id": pc.binary_join_element_wise(_ENGAGEMENT, pc.utf8_lpad(numbers, 9, "0"), ""),
        "person_id": persons,
        "source_person_id": persons,
        "version": pa.array(np.ones(count, np.int64)),
        "batch_id": pa.array(np.zeros(count, np.int64)),
        "engagement": _contents(count, schema_of(DATA).field("engagement").type, scale.seed, rng),
    }
    return _of_table(columns, DATA)


def _contents(count: int, struct: pa.StructType, seed: int, rng: np.random.Generator) -> pa.StructArray:
    """Contents of about 150 bytes as JSON. A session id keeps the files from compressing to nothing."""
    pool, which = contents(Random(seed), 400), pa.array(rng.integers(0, 400, count))
    said = [pa.array([one.get(name) for one in pool], pa.string()).take(which) for name in struct.names[:3]]
    digits = 16
    sessions = pa.Array.from_buffers(
        pa.string(),
        count,
        [
            None,
            pa.py_buffer(np.arange(0, (count + 1) * digits, digits, dtype=np.int32)),
            pa.py_buffer(rng.bytes(count * digits // 2).hex().encode()),
        ],
    )
    values = [pa.array(some, pa.string()).take(pa.array(rng.integers(0, 4, count))) for some in (_CAMPAIGNS, _URLS)]
    turns = (np.arange(count)[:, None] + np.array([0, count, 2 * count])).ravel()
    keys = pa.array(["campaign", "url", "session"]).take(pa.array(np.tile(np.arange(3), count)))
    items = pa.concat_arrays([*values, sessions]).take(pa.array(turns))
    offsets = pa.array(np.arange(0, 3 * count + 1, 3, dtype=np.int32))
    return pa.StructArray.from_arrays([*said, pa.MapArray.from_arrays(offsets, keys, items)], struct.names)


def _of_table(columns: Mapping[str, pa.Array | pa.ChunkedArray], table: Table) -> pa.Table:
    """These columns in the order of a table; the others are null."""
    count, schema = len(next(iter(columns.values()))), schema_of(table)
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in schema]
    return pa.table(arrays, names=schema.names).cast(schema)
