"""Keeps a writer that lost its leases from committing: the check before each commit, and what its successor closes.

A check cannot stop a write that is under way already, in a process that was stopped or on a server whose client was
killed. Its transaction id can: the successor commits an empty transaction under each id that the table
does not have yet (`close`), and from then on the table refuses the late write. How that is done is the lake's
business; which ids there are is declared here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType

from engagement_platform.engine.lease import Fence
from engagement_platform.engine.model import Manifest, Transaction

TARGETS = "targets"
"""Where a manifest's `source` keeps `Fencing.targets`, for abandoning the batch without having the job."""

OUTSIDE_BATCHES = frozenset({"migrate-layout"})
"""Purposes of leases whose holders commit under `lease_transaction` instead of a batch's transactions."""


@dataclass(frozen=True)
class TableTransaction:
    """One transaction of one table, by the table's name such as `engagement/data`."""

    table: str
    transaction: Transaction


class Fencing:
    """What a job needs of the lake so that a late write of a predecessor cannot land. This one: of no table."""

    targets: Mapping[str, str | None] = MappingProxyType({})
    """`<process>/<commit>` -> name of the table that it writes; None: not under the batch's transaction."""

    def check(self) -> None:
        """Raise a PlatformError when this process may not write to the lake any more."""

    def close(self, transactions: Sequence[TableTransaction]) -> None:
        """Commit an empty transaction for each that its table has not, so that no write under it can land later."""


def declared(
    manifest: Manifest, targets: Mapping[str, str | None], *, abandoned: bool = False
) -> list[TableTransaction]:
    """The transactions of a batch, whether its writer made them or not. abandoned: nobody finishes the batch.

    >>> from datetime import UTC, datetime
    >>> batch = Manifest("ingest", "ingest@1.5f", 7, {}, {}, datetime(2026, 1, 1, tzinfo=UTC))
    >>> [(one.table, one.transaction.marker) for one in declared(batch, {"data/append": "engagement/data"})]
    [('engagement/data', 'ingest@1.5f/data/append#7')]
    """
    named = ((table, *commit.rsplit("/", 1)) for commit, table in targets.items() if table is not None)
    return [
        TableTransaction(table, manifest.transaction(process, commit, abandoned=abandoned))
        for table, process, commit in named
    ]


def targets_of(source: Mapping[str, object]) -> dict[str, str]:
    """What the `source` of a manifest keeps of them; empty for a batch that declared none."""
    kept = source.get(TARGETS)
    return {commit: table for commit, table in kept.items() if table} if isinstance(kept, Mapping) else {}


def lease_transaction(fence: Fence) -> Transaction:
    """Names a write under a table's lease and outside of batches; a later holder's has a greater version."""
    return Transaction(f"lease/{fence.name}", fence.number)


def transaction_before(fence: Fence) -> TableTransaction:
    """What the holder of a table's lease before this one may still write to the table."""
    before = replace(fence, number=fence.number - 1)
    return TableTransaction(fence.name.removeprefix("table/"), lease_transaction(before))


class Committer:
    """Hands a process the transaction of each of its commits.

    check: raises when the run may not write any more; called before each commit, and once more by the transaction's
    `guard` when its rows are ready to be written. observe: called with each point that is passed.
    last: the commit after which the batch makes no other; None: another process comes after this one.
    """

    def __init__(
        self,
        manifest: Manifest,
        process: str,
        observe: Callable[[str], None],
        check: Callable[[], None] = lambda: None,
        last: str | None = None,
    ) -> None:
        self._manifest, self._process, self._observe, self._check = manifest, process, observe, check
        self._last = last

    @contextmanager
    def __call__(self, commit: str) -> Iterator[Transaction]:
        """The transaction to write under. Raises LeaseLost when another run holds a lease of this one."""
        self._observe(f"{self._process}.{commit}:before")
        self._check()
        transaction = self._manifest.transaction(self._process, commit, final=commit == self._last)
        yield replace(transaction, guard=self._check)
        self._observe(f"{self._process}.{commit}:after")
