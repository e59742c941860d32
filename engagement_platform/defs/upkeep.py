"""What a run of maintenance shows in Dagster, and organizations as partition keys. No decisions here: see `layout/`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

import dagster as dg
from dagster import MetadataValue

from engagement_platform.defs.batches import Metadata
from engagement_platform.errors import PlatformError
from engagement_platform.layout.optimize import Callbacks, Done, Outcome
from engagement_platform.layout.plan import Left
from engagement_platform.layout.vacuum import Vacuumed

Context = dg.AssetExecutionContext | dg.OpExecutionContext

SHOWN = 50
"""Rows of a table in a run's page."""

MAX_PARTITIONS = 100_000
"""Dagster's limit for one asset; organizations beyond it are looked after by the daily run only."""

_REFUSED = re.compile(r"%|\.(?=\.\.)")


def key_of_organization(organization: str) -> str:
    """As a partition key. Dagster reads three dots as a range, so the first is escaped, and so is the escape.

    >>> key_of_organization("a...b"), key_of_organization("100%"), key_of_organization("org-7")
    ('a%2E..b', '100%25', 'org-7')
    """
    return _REFUSED.sub(lambda match: f"%{ord(match[0]):02X}", organization)


def organization_of(key: str) -> str:
    """The organization behind a partition key."""
    return unquote(key)


def callbacks_of(context: Context) -> Callbacks:
    """Slices and waits go to the log of the run."""
    return Callbacks(
        on_slice=lambda one: context.log.info(f"{one}: {one.action}; {one.why}"),
        on_outcome=lambda outcome: context.log.info(_line(outcome)),
        on_wait=lambda one, holder: context.log.info(f"{one} waits: {holder}"),
    )


def _line(outcome: Outcome) -> str:
    if isinstance(outcome, Done):
        return f"{outcome.slice}: {outcome.files_before} -> {outcome.files_after} files in {outcome.seconds:.1f} s"
    return f"{outcome.slice} is left: {outcome.why}"


def optimized_metadata(outcomes: Sequence[Outcome], unread: Sequence[str] = ()) -> Metadata:
    """Of a run: slices, files and bytes before and after, seconds, and what was left and why."""
    done = [one for one in outcomes if isinstance(one, Done)]
    left = [one for one in outcomes if isinstance(one, Left)]
    shown: Metadata = {
        "slices": MetadataValue.int(len(done)),
        "slices_left": MetadataValue.int(len(left)),
        "files_before": MetadataValue.int(sum(one.files_before for one in done)),
        "files_after": MetadataValue.int(sum(one.files_after for one in done)),
        "bytes_rewritten": MetadataValue.int(sum(one.bytes_rewritten for one in done)),
        "bytes_written": MetadataValue.int(sum(one.bytes_written for one in done)),
        "seconds": MetadataValue.float(round(sum((one.seconds for one in done), 0.0), 2)),
    }
    if done:
        shown["done"] = _table([
            {"table": one.slice.table.name, "partition": one.slice.partition, "action": one.slice.action,
             "files": f"{one.files_before} → {one.files_after}", "predicted": str(one.slice.gain.files_after),
             "seconds": f"{one.seconds:.2f}", "why": one.slice.why}
            for one in done[:SHOWN]
        ])  # fmt: skip
    if left:
        shown["left"] = _table([
            {"table": one.slice.table.name, "partition": one.slice.partition, "why": one.why} for one in left[:SHOWN]
        ])  # fmt: skip
    if unread:
        shown["unread"] = MetadataValue.text("\n".join(unread))
    return shown


def observe_tables(context: Context, outcomes: Sequence[Outcome]) -> None:
    """What was done to each table as an observation of it, so that its page plots the figures over time."""
    for name in sorted({one.slice.table.name for one in outcomes}):
        own = [one for one in outcomes if one.slice.table.name == name]
        context.log_event(
            dg.AssetObservation(dg.AssetKey(name.strip("/").split("/")), metadata=optimized_metadata(own))
        )


def refuse_failed(outcomes: Sequence[Outcome]) -> None:
    """Fail the run, once it has done all it could, when a table could not be rewritten."""
    failed = [one for one in outcomes if isinstance(one, Left) and one.failed]
    if failed:
        raise dg.Failure(
            f"{len(failed)} slices failed, the first is {failed[0].slice}: {failed[0].why}",
            metadata=optimized_metadata(outcomes),
            allow_retries=False,
        )


def vacuumed_metadata(results: Iterable[Vacuumed | PlatformError]) -> Metadata:
    """Of a run of VACUUM: files and bytes that went, and for each table how long files are kept and why."""
    some = list(results)
    done = [one for one in some if isinstance(one, Vacuumed)]
    shown: Metadata = {
        "tables": MetadataValue.int(len(done)),
        "files": MetadataValue.int(sum(one.files for one in done)),
        "bytes": MetadataValue.int(sum(one.bytes or 0 for one in done)),
    }
    if done:
        shown["kept"] = _table([
            {"table": one.table, "files": str(one.files), "kept_hours": str(one.kept_hours), "because": one.because}
            for one in done[:SHOWN]
        ])  # fmt: skip
    return shown | _refused(some)


def _refused(results: Sequence[object]) -> Metadata:
    refused = [str(one) for one in results if isinstance(one, PlatformError)]
    return {"refused": MetadataValue.text("\n".join(refused))} if refused else {}


def _table(rows: Sequence[dict[str, str]]) -> dg.TableMetadataValue:
    columns = [dg.TableColumn(name) for name in rows[0]]
    return MetadataValue.table([dg.TableRecord(row) for row in rows], dg.TableSchema(columns))
