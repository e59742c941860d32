"""Which requests of a batch count, over Arrow columns: readers wait for no more than this before they see them.

What decides between requests that share an id is `requests.judge`; here it is asked about those alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.mutation.requests import Request, Verdict, judge


@dataclass(frozen=True)
class SortedRows:
    """The requests of a batch by what becomes of them."""

    accepted: pa.Table
    """Rows that count, in the order of landing."""
    duplicates: int
    rejected: list[tuple[int, str]]
    """Position among the rows, reason code; ordered by position."""


def sorted_rows(rows: pa.Table, known: pa.Table) -> SortedRows:
    """Sort out the requests of a batch, as `judge` does one by one.

    rows: requests.FIELDS, in the order of landing. known: requests accepted before with those FIELDS
    that they use, at least all of the same organizations and request ids.
    Cost: some ms for 10,000 requests, and 15 µs for each whose id is known or stands twice, in any organization.
    """
    ids = rows.column("request_id").combine_chunks().cast(pa.string())
    counts = pc.value_counts(ids)
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    doubtful = pc.or_(pc.is_in(ids, repeated), pc.is_in(ids, known.column("request_id").combine_chunks()))
    judged = pa.repeat(pa.scalar(Verdict.ACCEPTED.value), rows.num_rows)
    if pc.any(doubtful).as_py():
        few = rows.filter(doubtful)
        same = known.filter(pc.is_in(known.column("request_id"), ids.filter(doubtful)))
        found = judge(map(Request.of, few.to_pylist()), map(Request.of, same.to_pylist()))
        verdicts = pa.array([verdict.value for verdict in found], pa.string())
        judged = pc.replace_with_mask(judged, doubtful, verdicts)
    accepted = pc.equal(judged, Verdict.ACCEPTED.value)
    duplicate = pc.equal(judged, Verdict.DUPLICATE.value)
    others = pc.indices_nonzero(pc.invert(pc.or_(accepted, duplicate)))
    return SortedRows(
        accepted=rows.filter(accepted),
        duplicates=pc.sum(duplicate).as_py() or 0,
        rejected=list(zip(others.to_pylist(), judged.take(others).to_pylist(), strict=True)),
    )
