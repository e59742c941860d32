"""Notifications after a position, in their order, and what they come to for each engagement. Reads no other table."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.consumers.position import Position
from engagement_platform.errors import PlatformError
from engagement_platform.lake import added_rows, log
from engagement_platform.lake.added_rows import Added, CommitsExpired, FilesVacuumed, RowsTakenAway
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.engagement import NOTIFICATION

KEY = ("organization_id", "engagement_id")
READ = ("organization_id", "engagement_id", "engagement_date", "change_type", "previous_person_id", "batch_sequence")

_FIRST = pc.ScalarAggregateOptions(skip_nulls=False, min_count=0)


class TooFarBehind(PlatformError):
    """What a consumer has not read yet can no longer be read one by one."""

    def __init__(self, name: str, position: Position, why: str) -> None:
        self.name, self.position, self.why = name, position, why
        super().__init__(
            f"Consumer {name} cannot go on after version {position.version} of {NOTIFICATION.name}: {why}. It was away "
            "longer than these are kept, or the table is another one. Its cursor was not moved and no table was "
            "changed. Replace what it has by all rows that stand now, and go on from there: `resnapshot()`, or "
            f"`engagement-platform consume --name {name} --resnapshot --out FILE`."
        )


@dataclass(frozen=True)
class Notified:
    """Some notifications and the position after them."""

    rows: pa.Table
    """READ, in the order in which changes were announced; only of the organizations that were asked for."""
    position: Position


def notified(
    uri: str, name: str, position: Position, *, through: int, most: int, organizations: Collection[str] | None
) -> Notified:
    """What at most `most` notifications after a position hold for some organizations, from commits up to `through`.

    Raises TooFarBehind.
    """
    with told_too_far_behind(name, position):
        found = _read(uri, position, through, most)
    if organizations is None:
        return found
    wanted = pc.is_in(found.rows["organization_id"], pa.array(sorted(organizations), pa.string()))
    return Notified(found.rows.filter(wanted), found.position)


@contextmanager
def told_too_far_behind(name: str, position: Position) -> Iterator[None]:
    """What a log or files lack, as what it means to a consumer."""
    try:
        yield
    except CommitsExpired as error:
        kept = "keeps none after it" if error.lost_to is None else f"begins at {error.lost_to}"
        raise TooFarBehind(name, position, f"version {error.lost_from} is needed, but its log {kept}") from error
    except FilesVacuumed as error:
        why = f"{len(error.missing)} files that version {error.version} and later ones added were removed by VACUUM"
        raise TooFarBehind(name, position, why) from error
    except RowsTakenAway as error:
        why = f"version {error.version} took rows away ({error.operation})"
        raise TooFarBehind(name, position, why) from error


def refuse_replaced(name: str, position: Position, newest: int | None) -> None:
    """Raise TooFarBehind when the table has fewer versions than were read."""
    if position.version > (added_rows.BEFORE_ALL if newest is None else newest):
        found = "there is no table any more" if newest is None else f"its newest version is {newest}"
        raise TooFarBehind(name, position, f"{found}, so it was made anew")


def commits(uri: str, after: int, through: int) -> Iterator[tuple[int, list[Added]]]:
    """Each version after < v <= through with the files it added; each entry of the log is read when it is its turn."""
    for version in range(after + 1, through + 1):
        yield version, added_rows.added(uri, version)


def _read(uri: str, position: Position, through: int, most: int) -> Notified:
    parts, taken = [schema_of(NOTIFICATION, *READ).empty_table()], 0
    for version, files in commits(uri, position.version, through):
        begin, passed = position.rows, 0
        for file in files:
            count = added_rows.rows_in(uri, file)
            skip, passed = max(0, begin - passed), passed + count
            if skip >= count:
                continue
            rows = _rows_of(uri, file).slice(skip, most - taken)
            parts.append(rows)
            taken += rows.num_rows
            if taken == most:
                read = passed - count + skip + rows.num_rows
                whole = read == sum(added_rows.rows_in(uri, each) for each in files)
                return Notified(pa.concat_tables(parts), Position(version) if whole else Position(version - 1, read))
        position = Position(version)
    return Notified(pa.concat_tables(parts), position)


def _rows_of(uri: str, file: Added) -> pa.Table:
    try:
        return added_rows.read_here(uri, NOTIFICATION, [file], READ)
    except FileNotFoundError:
        raise FilesVacuumed(uri, file.version, log.committed(uri, file.version), [file.path]) from None


def by_engagement(rows: pa.Table) -> pa.Table:
    """One row an engagement: KEY, engagement_date, and previous_person_id as it was before the first of its rows."""
    of = rows.group_by(list(KEY), use_threads=False).aggregate(
        [("engagement_date", "first", _FIRST), ("previous_person_id", "first", _FIRST)]
    )
    return of.rename_columns({f"{name}_first": name for name in ("engagement_date", "previous_person_id")})
