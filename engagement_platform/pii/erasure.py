"""Erases a subject: its keys, what they encrypted, and what every other place has of it.

Tombstone and keys go first, in one transaction: from then on nothing of the subject can be read or come back, whatever
happens to the rest, and the same call again is harmless. Signing what was done is `receipts`.
"""

from __future__ import annotations

import errno
import json
import re
import sqlite3
import uuid
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import StrEnum

from deltalake.exceptions import DeltaError
from pyarrow import ArrowException

from engagement_platform.engine.database import open_engine, utc_now
from engagement_platform.engine.lease import Lease, LeaseStore
from engagement_platform.engine.model import Transaction
from engagement_platform.engine.stores import CheckpointStore
from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished, blocking_batches
from engagement_platform.errors import Damaged
from engagement_platform.lake import log, store_tables
from engagement_platform.lake.commit_lock import commit_lock
from engagement_platform.lake.contract import Table
from engagement_platform.lake.erased import ERASE_PLAYERS
from engagement_platform.lake.scan import MAX_LITERALS
from engagement_platform.pii.declared import EVERY_TYPE, parts
from engagement_platform.pii.encodings import joined
from engagement_platform.pii.keys import EVERY_GAME, Owner
from engagement_platform.pii.vault import REFUSED, VAULT, Vault
from engagement_platform.settings import Settings
from engagement_platform.sources.strict_json import Refused, without_duplicates
from engagement_platform.sources.values import subject_in

DELIVERY = "pii/delivery"
"""The lock that deliveries out of the spool and erasures take."""

UNREADABLE: tuple[type[Exception], ...] = (
    *(Damaged, DeltaError, ArrowException, sqlite3.Error),
    *(OSError, EOFError, ValueError, RecursionError, zlib.error),
)
"""What reading a damaged file, object or table raises; no other PlatformError, such as one that asks for patience."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_FILE = re.compile(r"[\w.-]+\.(?:parquet|json)\b")


@dataclass(frozen=True)
class Subject:
    """Whom an erasure is about."""

    id: str
    ref: str
    game: str | None = None
    """None: in all games, also later ones."""

    @property
    def owner(self) -> Owner:
        """As keys and tombstones name it. Raises ValueError for an empty game, which is a forgotten one."""
        if self.game == EVERY_GAME:
            raise ValueError("a subject's game is None for every game, and never empty")
        return Owner(EVERY_GAME if self.game is None else self.game, self.ref)


class Former(StrEnum):
    """What former versions of a table keep on the disk after an erasure."""

    FILES = "files"
    """Rows, until VACUUM."""
    LOG = "log"
    """Least and greatest values of columns, until entries of the log expire."""


class Erasable(ABC):
    """A place that holds rows of subjects. Both calls may come again after a crash."""

    name: str
    """What it is called in receipts, such as `engagement/data`."""
    objects: Sequence[str] = ()
    """What `erase` has written anew, by name, where that is not one table."""
    stays: Sequence[str] = ()
    """What it left as it is, each with the reason and what to do."""

    @abstractmethod
    def erase(self, subject: Subject) -> int:
        """Remove everything of the subject; how many rows."""

    @abstractmethod
    def left(self, subject: Subject) -> int:
        """How many rows of the subject there are now."""

    def keeps(self) -> Mapping[Former, timedelta | str]:
        """How long after an erasure former versions may be there, which others may still read; a text: until what."""
        return {}


@contextmanager
def reported(what: str, stays: list[str], unfinished: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Add to `stays` that `what` could not be read or written, where that ends the block; anything else is raised.

    unfinished: errors that say nothing of what is there, such as those of a Spark that was killed: nobody is to delete
    it for them. Of the error the sentence has the class and a file's name only: its text may have ids.
    """
    try:
        yield
    except (*UNREADABLE, *unfinished) as error:
        if isinstance(error, Damaged):
            stays.append(f"{what}: {error} Then erase again.")
            return
        file = _FILE.search(str(error))
        why = ", ".join((type(error).__name__, *((file.group(),) if file else ())))
        if isinstance(error, unfinished) or (isinstance(error, OSError) and error.errno in _NO_ROOM):
            stays.append(f"{what} could not be rewritten ({why}); that says nothing of its rows. Erase again.")
            return
        stays.append(
            f"{what} could not be read or written ({why}) and may have more of the subject. Restore it, or delete it; "
            "then erase again."
        )


@dataclass(frozen=True)
class Erased:
    """What was done in one place."""

    name: str
    rows: int
    left: int
    until: Mapping[str, str] = field(default_factory=dict)
    """What former versions keep -> until when at least, ISO 8601: the next VACUUM, or cleaning of the log, removes it.
    A sentence where no time does: until what. Empty where everything is gone."""
    objects: Sequence[str] = ()
    stays: Sequence[str] = ()


@dataclass
class VaultRows(Erasable):
    """One of the vault's tables. No former version of it is ever read, so its files go at once."""

    vault: Vault
    table: Table

    def __post_init__(self) -> None:
        self.name = self.table.name
        self.stays: list[str] = []

    def erase(self, subject: Subject) -> int:
        """Remove the subject's rows, and refused events without a readable subject in which its id stands."""
        if log.version(self.table.uri(self.vault.root)) is None:
            return 0
        with commit_lock(self.vault.root, VAULT.name):
            found, naming = self.vault.opened(self.table), self._naming(subject)
            where = {"subject_ref": [subject.ref], **({} if subject.game is None else {"game": [subject.game]})}
            chunks = (naming[n : n + MAX_LITERALS] for n in range(0, len(naming), MAX_LITERALS))
            gone = 0
            for condition in (where, *({"refused_id": chunk} for chunk in chunks)):
                gone += store_tables.remove(found, condition, once())
                found.update_incremental()
            store_tables.purge(found)
        return gone

    def left(self, subject: Subject) -> int:
        """How many of those rows there are."""
        rows = self.vault.rows_of(self.table, [subject.ref])
        named = self._naming(subject)
        return sum(subject.game in (None, row["game"]) for row in rows) + len(named) + len(self.stays)

    def _naming(self, subject: Subject) -> list[str]:
        if self.table is not REFUSED or not subject.id:
            return []
        refs = [self.vault.keyring.ref(unattributed(day)) for day in self.vault.days(REFUSED)]
        rows = self.vault.rows_of(REFUSED, refs) if refs else []
        pattern, decrypted = naming(subject), self.vault.decryptor(REFUSED)
        rows = [row for row in rows if subject.game in (None, row["game"])]
        found, self.stays = [], []
        for row in rows:
            with reported(f"The refused event {row['refused_id']} in {REFUSED.name}", self.stays):
                packed = decrypted(row)
                if packed is not None and is_named(pattern, zlib.decompress(packed)):
                    found.append(row["refused_id"])
        return found


def vault_rows(vault: Vault) -> list[Erasable]:
    """The places of the vault."""
    return [VaultRows(vault, table) for table in (VAULT, REFUSED)]


def subject(vault: Vault, subject_id: str, game: str | None) -> Subject:
    """The subject with its reference. Raises IdRefused."""
    return Subject(subject_id, vault.ref(subject_id), game)


def unattributed(day: date) -> str:
    """The subject of refused events of a day that do not say whom they are about; no event can name it."""
    return f"\x00unattributed/{day.isoformat()}"


def erase(vault: Vault, who: Subject, others: Sequence[Erasable] = ()) -> tuple[int, list[Erased]]:
    """Erase a subject everywhere; (keys destroyed, what was done where). Final: its later events are discarded too.

    Raises TableBusy, StoresUnavailable, and what `unfinished_batches` raise; then the keys may be gone already, and the
    same call does the rest.
    """
    # While this lock is held no event is on its way from the spool to a table or an object.
    with commit_lock(vault.root, DELIVERY):
        keys = vault.keyring.destroy(who.owner)
        return keys, [_erased(place, who) for place in (*vault_rows(vault), *others)]


def naming(who: Subject) -> re.Pattern[bytes]:
    """Finds the subject's id in bytes, plain or as ASCII JSON, as a word of its own."""
    forms = {who.id.encode("utf-8", "surrogatepass"), json.dumps(who.id)[1:-1].encode()}
    return re.compile(rb"(?<!\w)(?:" + b"|".join(map(re.escape, sorted(forms))) + rb")(?!\w)")


def is_named(pattern: re.Pattern[bytes], value: bytes | None) -> bool:
    """Whether a record names the subject of `naming`, in whatever way JSON writes the id; the JSON may be broken."""
    if not value:
        return False
    return pattern.search(value) is not None or (b"\\" in value and pattern.search(_unescaped(value)) is not None)


def _unescaped(value: bytes) -> bytes:
    """JSON with what its escapes stand for in their place."""

    def plain(found: re.Match[str]) -> str:
        return chr(int(found[1], 16)) if found[1] else _CONTROLS.get(found[2], found[2])

    return joined(_ESCAPE.sub(plain, value.decode("utf-8", "replace"))).encode("utf-8", "surrogatepass")


def is_event_of(who: Subject, settings: Settings) -> Callable[[bytes], bool]:
    """Says of a line whether it is an event of the subject, or none that can be read and names the subject.

    What has a key twice cannot be read: decoding refuses it, and each value may be the one that was meant.
    """
    words, plain = naming(who), who.id.encode("utf-8", "surrogatepass")
    path = parts(settings.pii.subject, EVERY_TYPE)

    def is_of(line: bytes) -> bool:
        # Most lines have nothing of the id in them and need not be parsed; one that escapes characters does.
        if plain not in line and b"\\" not in line:
            return False
        try:
            event: object = json.loads(line, object_pairs_hook=without_duplicates)
        except (ValueError, RecursionError, Refused):
            event = None
        if not isinstance(event, dict):
            # Nobody can say of which game it is.
            return is_named(words, line)
        return subject_in(event, path) == who.id and who.game in (None, event.get("game_id"))

    return is_of


@contextmanager
def nobody_writes(settings: Settings, leased: Sequence[str]) -> Iterator[list[Lease]]:
    """Hold the leases of tables while an erasure writes them and no batch of them is half done.

    Raises LeaseUnavailable, OthersBatchUnfinished.
    """
    stores, engine = settings.stores, open_engine(settings.store_url)
    leases = LeaseStore(engine, ttl=stores.lease_ttl)
    with ExitStack() as held:
        names = (f"table/{name}" for name in leased)
        taken = [held.enter_context(leases.acquire(n, purpose="erase", wait=stores.lease_wait)) for n in names]
        if others := blocking_batches("erase", leased, CheckpointStore(engine).unfinished()):
            raise OthersBatchUnfinished("erase", leased, others)
        yield taken


def expire_refused(vault: Vault, keep: timedelta) -> int:
    """Remove refused events of days that are wholly older than `keep`, and the keys of those days; how many rows."""
    last = (utc_now() - keep).date() - timedelta(days=1)
    old = [day for day in vault.days(REFUSED) if day <= last][:MAX_LITERALS]
    if not old:
        return 0
    with commit_lock(vault.root, VAULT.name):
        for day in old:
            vault.keyring.destroy(Owner(EVERY_GAME, vault.keyring.ref(unattributed(day))))
        found = vault.opened(REFUSED)
        gone = store_tables.remove(found, {"received_date": old}, once())
        store_tables.purge(found)
    return gone


def once() -> Transaction:
    """A transaction of an erasure: each is one of its own, nothing of it is replayed."""
    return Transaction(f"{ERASE_PLAYERS}/{uuid.uuid4()}", 0)


def look(place: Erasable, who: Subject) -> tuple[int, list[str]]:
    """(rows of the subject that are left, what stays and why); of a place that cannot be read one row."""
    damage: list[str] = []
    left = 1
    with reported(place.name, damage):
        left = place.left(who)
    return left, list(dict.fromkeys((*place.stays, *damage)))


def _erased(place: Erasable, who: Subject) -> Erased:
    gone, damage = 0, list[str]()
    with reported(place.name, damage):
        gone = place.erase(who)
    (left, stays), now = look(place, who), utc_now()
    kept = place.keeps().items()
    until = {former.value: keep if isinstance(keep, str) else (now + keep).isoformat() for former, keep in kept}
    stays += [sentence for sentence in dict.fromkeys(damage) if sentence not in stays]
    return Erased(place.name, gone, left, until, tuple(place.objects), tuple(stays))
