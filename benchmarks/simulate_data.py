"""Days of traffic for the simulation: what lands in each batch of a day, and which requests come at its end.

Arithmetic and Arrow tables only, made from a seed by `mutation_data`; running the days is `simulate_days`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.mutation_data import BEGIN, Conversion, DataSet, Scale, Tally, tally

LATEST = 8
"""Most days that an engagement comes late by."""


@dataclass(frozen=True)
class Days:
    """So many days of engagements, in `batches` a day, and of conversions, all at a day's end.

    late_percent of the engagements land one to LATEST days late; they are of persons who are never converted, since
    giving others the id that they have by then is the work of the ingestion, which is left out here. A conversion
    applies to what its person did until that day; what the old id does later stays with it.
    """

    scale: Scale
    batches: int
    late_percent: float

    @cached_property
    def data_set(self) -> DataSet:
        """All rows and conversions."""
        return DataSet(self.scale)

    @cached_property
    def _converted_on(self) -> dict[tuple[str, str], int]:
        """The day of each converted id; chains are converted whole."""
        rng, day = np.random.default_rng([self.scale.seed, 3]), 0
        found = {}
        for one in self.data_set.conversions:
            day = int(rng.integers(self.scale.days)) if one.hop == 0 else day
            found[one.organization_id, one.from_id] = day
        return found

    @cached_property
    def rows(self) -> pa.Table:
        """All rows."""
        return pa.concat_tables(self.data_set.rows()).combine_chunks()

    @cached_property
    def _days(self) -> npt.NDArray[np.int64]:
        """The day of each row's engagement, from 0."""
        dates = self.rows.column("engagement_date").cast(pa.int32()).to_numpy().astype(np.int64)
        return np.asarray(dates - (BEGIN.date() - date(1970, 1, 1)).days)

    @cached_property
    def _conversion_days(self) -> npt.NDArray[np.int64]:
        """The day on which each row's person is converted, -1 for never."""
        names = ("organization_id", "source_person_id")
        keys = zip(*(self.rows.column(name).to_pylist() for name in names), strict=True)
        return np.fromiter((self._converted_on.get(key, -1) for key in keys), np.int64, self.rows.num_rows)

    @cached_property
    def landing(self) -> npt.NDArray[np.int64]:
        """The day on which each row lands; at most the last one."""
        rng = np.random.default_rng([self.scale.seed, 4])
        never = np.flatnonzero(self._conversion_days < 0)
        late = rng.permutation(never)[: round(self.rows.num_rows * self.late_percent / 100)]
        landing = self._days.copy()
        landing[late] += rng.integers(1, LATEST + 1, len(late))
        return np.minimum(landing, self.scale.days - 1)

    def landed(self, day: int) -> list[pa.Table]:
        """The batches of a day, by time of engagement; together all rows that land on it."""
        mine = self.rows.filter(pa.array(self.landing == day)).sort_by("engagement_ts")
        ends = [mine.num_rows * n // self.batches for n in range(self.batches + 1)]
        return [mine.slice(begin, end - begin) for begin, end in pairwise(ends)]

    def conversions(self, day: int) -> list[Conversion]:
        """Those at the end of a day."""
        known = self._converted_on
        return [one for one in self.data_set.conversions if known[one.organization_id, one.from_id] == day]

    def requests(self, day: int) -> list[Mapping[str, str]]:
        """The same as messages; ids are of this day only."""
        of_day = copy.copy(self.data_set)
        of_day.conversions = self.conversions(day)
        # At midnight, so that the whole day is before it. With hops a minute apart, what happens in the first minutes
        # of the next day would be before the later hops, and rightly move.
        of_day.executed, of_day.hops_apart = BEGIN + timedelta(days=day + 1), timedelta(microseconds=1)
        requests = of_day.conversion_requests()
        return [{**request, "request_id": f"day-{day}-{n}"} for n, request in enumerate(requests)]

    def expected(self) -> Tally:
        """What readers find after the last day."""
        moved = self._days <= self._conversion_days
        stay, go = (self.rows.filter(pa.array(which)) for which in (~moved, moved))
        found: Tally = {}
        for part in (tally(stay, "source_person_id"), tally(go, "source_person_id", self.data_set.ends)):
            for key, (count, total) in part.items():
                before = found.get(key, (0, 0))
                found[key] = before[0] + count, before[1] + total
        return found
