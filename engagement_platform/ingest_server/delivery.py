"""Delivers closed segments: personal data to the vault, then clean events to the sink, then the segment goes.

Segment by segment, in their order; delivering one again after a crash adds nothing. Where lines end up is `sinks`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Event, Thread

from engagement_platform.engine.model import Transaction
from engagement_platform.errors import PlatformError
from engagement_platform.ingest_server.intake import SpoolSeal
from engagement_platform.ingest_server.sinks import Sink
from engagement_platform.ingest_server.spool import Record, RecordKind, Segment, Spool
from engagement_platform.lake.commit_lock import commit_lock
from engagement_platform.pii.erasure import DELIVERY, unattributed
from engagement_platform.pii.keys import Owner
from engagement_platform.pii.vault import Deposit, Refusal, Vault

_LOG = logging.getLogger(__name__)

_LONGEST_PAUSE_S, _LOOK_EVERY_S = 60.0, 0.2


@dataclass
class Delivered:
    """What one segment held."""

    events: int = 0
    values: int = 0
    refused: int = 0
    erased: int = 0
    """Events of erased subjects, which go nowhere."""


class Delivery:
    """Delivers what is closed, in a thread of its own, until it is stopped.

    failed: why the last attempt did not work, None when it did. on_delivered: called after every segment.
    """

    def __init__(
        self,
        spool: Spool,
        vault: Vault,
        sink: Sink,
        *,
        retry_after: timedelta = timedelta(seconds=5),
    ) -> None:
        self._spool, self._vault, self._sink = spool, vault, sink
        self.on_delivered: Callable[[Delivered], None] = lambda _delivered: None
        self._seal = SpoolSeal(vault.keyring.secret("spool"), spool.id)
        self._retry_after_s = retry_after.total_seconds()
        self.failed: str | None = None
        self.failures = 0
        self._stop = Event()
        self._thread = Thread(target=self._work, name="delivery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, within_s: float) -> None:
        """Deliver what is closed for at most so many seconds, then end; the next start delivers the rest."""
        deadline = time.monotonic() + within_s
        while self._thread.is_alive() and self._spool.sealed() and self.failed is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self._stop.set()
        # A segment that is being delivered is finished, or delivered again by the next start.
        self._thread.join(timeout=max(deadline - time.monotonic(), 1.0))

    def deliver(self, segment: Segment) -> Delivered:
        """Deliver one segment; the same again after any error. Raises what vault, sink and spool raise."""
        # Erasures take the same lock: after one no event of its subject is on its way any more.
        with commit_lock(self._vault.root, DELIVERY):
            records = self._spool.records(segment)
            erased = self._vault.keyring.erased({Owner(record.game, record.ref) for record in records if record.ref})
            lines, deposits, refusals, delivered = list[bytes](), list[Deposit](), list[Refusal](), Delivered()
            for place, record in enumerate(records):
                # One without content was emptied in the spool by an erasure.
                gone = Owner(record.game, record.ref) in erased or not record.open
                delivered.erased += gone
                if record.kind is RecordKind.ACCEPTED:
                    # An erased event leaves an empty line: the sink may have counted how far it came before.
                    lines.append(b"" if gone else record.open)
                    if record.sealed and not gone:
                        deposits.append(self._deposit(record))
                elif not gone:
                    refusals.append(self._refusal(segment, place, record))
            number, delivered.events, delivered.refused = segment.number, sum(map(bool, lines)), len(refusals)
            values = Transaction(f"ingest-vault/{segment.spool}", number)
            delivered.values = self._vault.append(deposits, number, values)
            self._vault.append(refusals, number, Transaction(f"ingest-refused/{segment.spool}", number))
            if delivered.events:
                self._sink.put(segment, lines)
            self._spool.remove(segment)
        return delivered

    def _deposit(self, record: Record) -> Deposit:
        event_id, event_type, received, values = json.loads(self._seal.open(record))
        owner = Owner(record.game, record.ref)
        return Deposit(owner, event_id, event_type, datetime.fromisoformat(received), [tuple(each) for each in values])

    def _refusal(self, segment: Segment, place: int, record: Record) -> Refusal:
        why = json.loads(record.open)
        received = datetime.fromisoformat(why["received_ts"])
        ref = record.ref or self._vault.keyring.ref(unattributed(received.date()))
        refused_id = f"{segment.spool}-{segment.number:012d}-{place}"
        owner, body = Owner(record.game, ref), self._seal.open(record)
        return Refusal(refused_id, owner, why["reason_code"], why["reason"], received, body)

    def _work(self) -> None:
        pause = self._retry_after_s
        while not self._stop.is_set():
            try:
                for segment in self._spool.sealed():
                    if self._stop.is_set():
                        return
                    self.on_delivered(self.deliver(segment))
                    self.failed, pause = None, self._retry_after_s
                # Also where nothing waits: a server that is not ready may get nothing any more.
                self.failed, pause = None, self._retry_after_s
                self._stop.wait(_LOOK_EVERY_S)
            except Exception as error:  # the server goes on taking events in, and readiness says what is wrong
                # Of other errors only the kind is logged: their text may quote what was delivered.
                self.failed = str(error) if isinstance(error, PlatformError) else f"{type(error).__name__} in delivery"
                self.failures += 1
                _LOG.warning("events wait in the spool: %s", self.failed)
                self._stop.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)
