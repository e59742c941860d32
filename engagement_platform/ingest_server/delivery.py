"""Sealed segments on their way out: personal data to the vault, then clean events to the sink, then the segment goes.

Segment by segment, in their order; doing one again after a crash adds nothing. Where lines end up is `sinks`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from threading import Event, Thread

from engagement_platform.engine.model import Transaction
from engagement_platform.errors import PlatformError
from engagement_platform.ingest_server.intake import SpoolSeal
from engagement_platform.ingest_server.records import Record, RecordKind
from engagement_platform.ingest_server.sinks import Sink
from engagement_platform.ingest_server.spool import Segment, Spool
from engagement_platform.lake.turns import turn
from engagement_platform.pii.erasure import DELIVERY, unattributed
from engagement_platform.pii.keys import Owner
from engagement_platform.pii.vault import Deposit, Refusal, Vault

_LOG = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 60.0


@dataclass
class Delivered:
    """What one segment held."""

    events: int = 0
    values: int = 0
    refused: int = 0
    erased: int = 0
    """Events of erased subjects, which go nowhere."""


@dataclass
class _Sorted:
    lines: list[bytes] = field(default_factory=list)
    """One for each accepted event; empty for one of somebody who is erased."""
    deposits: list[Deposit] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    erased: int = 0


class Delivery:
    """Delivers what is sealed, in a thread of its own, until it is told to stop.

    failed: why the last attempt did not work, None when it did. told: called with every segment that was delivered.
    """

    def __init__(
        self,
        spool: Spool,
        vault: Vault,
        sink: Sink,
        *,
        retry_after: timedelta = timedelta(seconds=5),
        told: Callable[[Segment, Delivered], None] = lambda _segment, _delivered: None,
    ) -> None:
        self._spool, self._vault, self._sink, self.told = spool, vault, sink, told
        self._seal = SpoolSeal(vault.keyring.secret("spool"), spool.id)
        self._retry_after_s = retry_after.total_seconds()
        self.failed: str | None = None
        self.failures = 0
        self._stop = Event()
        self._thread = Thread(target=self._work, name="delivery", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, within_s: float) -> None:
        """Deliver what is sealed for at most so many seconds, then end; what is left waits for the next start."""
        deadline = time.monotonic() + within_s
        while self._thread.is_alive() and self._spool.sealed() and self.failed is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self._stop.set()
        self._spool.sealed_one.set()
        # A segment that is being delivered is finished, or done again by the next start.
        self._thread.join(timeout=max(deadline - time.monotonic(), 1.0))

    def deliver(self, segment: Segment) -> Delivered:
        """One segment, to its end.

        Raises SinkUnavailable, SpoolDamaged, SealBroken, TableBusy, StoresUnavailable, and what the master key raises;
        all of it may then be done again.
        """
        records = list(segment.records())
        # Erasures take the same turn: after one no event of its subject is on its way any more.
        with turn(self._vault.root, DELIVERY):
            sorted_ = self._sorted(segment, records)
            number = segment.number
            values = self._vault.deposit(sorted_.deposits, number, Transaction(f"ingest-vault/{segment.spool}", number))
            refused = Transaction(f"ingest-refused/{segment.spool}", number)
            self._vault.refuse(sorted_.refusals, number, refused)
            if any(sorted_.lines):
                self._sink.put(segment, sorted_.lines)
            self._spool.remove(segment)
            self._sink.forget(segment)
        return Delivered(sum(map(bool, sorted_.lines)), values, len(sorted_.refusals), sorted_.erased)

    def _sorted(self, segment: Segment, records: list[Record]) -> _Sorted:
        erased = self._vault.keyring.erased({Owner(record.game, record.ref) for record in records if record.ref})
        sorted_ = _Sorted()
        for place, record in enumerate(records):
            owner = Owner(record.game, record.ref)
            # One without content was emptied in the spool by an erasure.
            if owner in erased or not record.open:
                sorted_.erased += 1
                if record.kind is RecordKind.ACCEPTED:
                    # Keeps its place: a sink may have counted how far it came before somebody was erased.
                    sorted_.lines.append(b"")
            elif record.kind is RecordKind.REFUSED:
                sorted_.refusals.append(self._refusal(segment, place, record))
            else:
                sorted_.lines.append(record.open)
                if record.sealed:
                    sorted_.deposits.append(self._deposit(record))
        return sorted_

    def _deposit(self, record: Record) -> Deposit:
        event_id, event_type, received, values = json.loads(self._seal.open(record))
        said = [(str(declared), str(path), value) for declared, path, value in values]
        owner = Owner(record.game, record.ref)
        return Deposit(owner, event_id, event_type, datetime.fromisoformat(received), said)

    def _refusal(self, segment: Segment, place: int, record: Record) -> Refusal:
        said = json.loads(record.open)
        received = datetime.fromisoformat(said["received_ts"])
        owner = Owner(record.game, record.ref or self._of_the_day(received.date()))
        refused_id = f"{segment.spool}-{segment.number:012d}-{place}"
        return Refusal(refused_id, owner, said["reason_code"], said["reason"], received, self._seal.open(record))

    def _of_the_day(self, day: date) -> str:
        return self._vault.keyring.ref(unattributed(day))

    def _work(self) -> None:
        pause = self._retry_after_s
        while not self._stop.is_set():
            self._spool.sealed_one.clear()
            try:
                waiting = self._spool.sealed()
                for segment in waiting:
                    if self._stop.is_set():
                        return
                    self.told(segment, self.deliver(segment))
                    self.failed, pause = None, self._retry_after_s
            except Exception as error:  # the server goes on taking events in, and readiness says what is wrong
                self._fail(error)
                self._stop.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)
                continue
            if not waiting:
                self._spool.sealed_one.wait(timeout=1.0)

    def _fail(self, error: Exception) -> None:
        # Of errors that nobody foresaw only the kind is told: their words may quote what was delivered.
        self.failed = str(error) if isinstance(error, PlatformError) else f"{type(error).__name__} in delivery"
        self.failures += 1
        _LOG.warning("events wait in the spool: %s", self.failed)
