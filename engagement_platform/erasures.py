"""Erases a subject everywhere and signs what was done: what the command and the Dagster job share.

The one place that knows every table, file and store that an erasure reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engagement_platform.engine.database import utc_now
from engagement_platform.engine.job import BatchReport, Callbacks
from engagement_platform.erasing.found import Whom
from engagement_platform.erasing.job import Eraser, tables
from engagement_platform.erasing.places import TablePlace, declared_places, game_places, places
from engagement_platform.ingest_server.spooled import SpooledRecords
from engagement_platform.ingest_server.stored import stored_objects
from engagement_platform.jobs import open_stores
from engagement_platform.lake import log
from engagement_platform.pii import erasure, receipts
from engagement_platform.pii.vault import open_vault
from engagement_platform.pipelines.declarations.declared import Declarations, declarations
from engagement_platform.pipelines.games.erasing import PlayersKept
from engagement_platform.pipelines.games.feed import Feed, shipped
from engagement_platform.pipelines.games.raw_objects import RawObjects
from engagement_platform.settings import Settings

NOT_ERASED = ("messages in Kafka", "copies that consumers keep", "backups")
"""What no erasure looks into; docs/pii.md says why, and what to do."""

_OF_NOBODY = frozenset({"layout", "perftest", "pii"})
"""Tables, and first parts of their names, that say nothing of anybody, or are the vault's."""


@dataclass(frozen=True)
class Request:
    """Who is to be erased, and how.

    game: only of this game; then engagements and profiles are left alone. now: delete at once what former versions
    keep, where nobody reads them any more.
    """

    subject: str
    game: str | None = None
    persons: Sequence[str] = ()
    organizations: Sequence[str] = ()
    profiles: Sequence[str] = ()
    now: bool = False

    @property
    def whom(self) -> Whom:
        """Which persons and profiles that is."""
        return Whom.of(self.subject, self.persons, self.organizations, self.profiles)

    @classmethod
    def of_json(cls, said: Mapping[str, Any]) -> Request:
        """From a file: the fields by their names. Raises TypeError for others."""
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in said.items()}
        return cls(**fields)


@dataclass(frozen=True)
class Done:
    """A signed receipt, and whether anything is left."""

    receipt: Mapping[str, Any]
    left: int
    kept: Sequence[str] = field(default=())
    """Who keeps former versions that were to be purged at once, as sentences."""
    stays: Sequence[str] = field(default=())
    """What was left as it is, with the reason and what to do, as sentences."""


def erase(settings: Settings, asked: Request, callbacks: Callbacks | None = None) -> Done:
    """Erase a subject everywhere. Raises what each place raises; the same call then does the rest."""
    vault, reach = open_vault(settings), _places(settings, asked, callbacks)
    who = erasure.subject(vault, asked.subject, asked.game)
    keys, done = erasure.erase(vault, who, reach)
    given = receipts.receipt(vault.keyring, who, keys, done, utc_now(), not_reached(settings, asked))
    stays = [sentence for one in done for sentence in one.stays]
    return Done(given, sum(one.left for one in done), list(_kept(reach)), stays)


def finish(settings: Settings, callbacks: Callbacks | None = None) -> Iterator[BatchReport]:
    """Finish erasures of engagements and profiles that were interrupted. Without a receipt: erase again for that."""
    return Eraser(settings, open_stores(settings), callbacks or Callbacks()).finish()


def verify(settings: Settings, receipt: Path, asked: Request | None) -> list[receipts.Check]:
    """Look again at what a receipt promises; asked None: without the id. Raises ReceiptRefused."""
    reach = [] if asked is None else _places(settings, asked, None)
    given, subject = receipts.read(receipt), None if asked is None else asked.subject
    outside, names = [settings.home / "kafka"], [] if asked is None else asked.whom.ids
    return receipts.verify(open_vault(settings), given, reach, subject, settings.home, outside, names)


def not_reached(settings: Settings, asked: Request) -> list[str]:
    """Where the subject may be and nobody has looked."""
    declared = declarations(settings)
    found = [
        *NOT_ERASED,
        *_other_tables(settings, declared),
        *(f"{stream.table.name} (declared without subject)" for stream in declared.streams if stream.subject is None),
    ]
    found += [
        f"objects of raw events at {_raw(settings, feed).name} (no queue is configured, or pii.raw_objects says so)"
        for feed in _feeds(settings)
        if feed.settings(settings).games.bucket is not None and not _raw(settings, feed).is_reached
    ]
    if asked.game is not None:
        found += ["engagement/*, profile/* and what is declared (only a game was asked for)"]
    return found


def _other_tables(settings: Settings, declared: Declarations) -> Iterator[str]:
    """Tables of the lake that no place is about, and that may be about somebody."""
    named = {table.name for table in tables(settings)}
    named |= {table.name for stream in declared.streams for table in (stream.table, stream.quarantine)}
    groups = {feed.group for feed in (shipped(settings), *declared.feeds)}
    groups |= {each.entity.name for each in declared.entities} | _OF_NOBODY
    for name in log.tables(settings.lake):
        if name not in named and name not in _OF_NOBODY and name.split("/")[0] not in groups:
            yield name


def _places(settings: Settings, asked: Request, callbacks: Callbacks | None) -> list[erasure.Erasable]:
    found: list[erasure.Erasable] = [
        SpooledRecords(settings),
        *stored_objects(settings),
        *game_places(settings),
        # After the tables that it is counted from.
        PlayersKept(settings),
    ]
    if asked.game is None:
        # Before engagement/quarantine is looked through: what declared entities refuse lands there, too, and from here
        # on they refuse nothing that is about the person.
        found += declared_places(settings)
        found += places(settings, asked.whom, callbacks, now=asked.now)
    # Last, for they may be many.
    return [*found, *(raw for raw in (_raw(settings, feed) for feed in _feeds(settings)) if raw.is_reached)]


def _feeds(settings: Settings) -> list[Feed]:
    return [shipped(settings), *declarations(settings).feeds]


def _raw(settings: Settings, feed: Feed) -> RawObjects:
    return RawObjects(feed.settings(settings), feed)


def _kept(reach: Sequence[erasure.Erasable]) -> Iterator[str]:
    for place in reach:
        if isinstance(place, TablePlace) and (purged := place.run.purged.get(place.name)) is not None:
            for because in purged.kept_by:
                yield f"{place.name}: {because}"
