"""Erases a subject everywhere and signs what was done: what the command and the Dagster job share.

The one place that lists every table, file and store that an erasure reaches.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from engagement_platform.engine.database import utc_now
from engagement_platform.engine.job import BatchReport, Callbacks
from engagement_platform.erasing.job import Eraser
from engagement_platform.erasing.places import SubjectTables, TablePlace, Tables, declared_places, game_places, places
from engagement_platform.erasing.subject_lookup import SubjectIds
from engagement_platform.errors import PlatformError
from engagement_platform.ingest_server.erasing import SpooledRecords, StoredObjects
from engagement_platform.lake import log
from engagement_platform.pii import erasure, receipts
from engagement_platform.pii.vault import REFUSED, VAULT, checked_id, open_vault
from engagement_platform.pipelines.declarations.declared import declarations
from engagement_platform.pipelines.games.decoding import GAME_ID
from engagement_platform.pipelines.games.erasing import PlayersKept
from engagement_platform.pipelines.games.feed import shipped
from engagement_platform.pipelines.games.raw_objects import RawObjects
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.settings import Settings
from engagement_platform.sources.strict_json import Refused, object_parser

NOT_ERASED = (
    *("messages in Kafka", "copies that consumers keep", "backups"),
    "spools of other ingest servers (each discards at its next delivery)",
    "tables in other tables' folders of partitions, or in those that begin with _ or .",
)
"""What no erasure looks into; docs/pii.md says why, and what to do."""

COVERED, WITHOUT, NOT_COVERED = "covered", "without personal columns", "not covered"
NOT_DONE = "not done"
"""Of a table that is damaged, or erased by the batch that another damaged one has ended."""
WITHOUT_PERSONAL_COLUMNS = frozenset({"layout/history", "layout/restore", "perftest/timer", "pii/audit", "view/daily"})
"""Tables that are declared to say nothing of anybody; pii/audit names subjects by keyed hash, as receipts do."""

_LARGEST_REQUEST = 1 << 20
"""Bytes of a file."""

_FOLDS: Mapping[str, Callable[[str], str]] = {
    "case": str.casefold,
    "nfc": partial(unicodedata.normalize, "NFC"),
    "trim": str.strip,
}


class GameRefused(PlatformError):
    """An erasure was to be of one game, and of none that can be."""

    def __init__(self) -> None:
        # Without it: it may be an id that was given in the wrong place, and messages are kept by Dagster.
        super().__init__(
            "The game is none that events can name: letters, digits, - . and _, 1 to 64 of them. Nothing was erased. "
            "Give it as game_id has it, or leave it out to erase the subject in every game."
        )


@dataclass(frozen=True)
class Request:
    """Who is to be erased, and how.

    game: only of this game; then engagements and profiles are left alone. now: delete at once what former versions
    keep, where nobody reads them any more.
    """

    # An error that repeats what it refuses would keep an id in the log of the run.
    __pydantic_config__ = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)

    subject: str
    game: str | None = None
    persons: Sequence[str] = ()
    organizations: Sequence[str] = ()
    profiles: Sequence[str] = ()
    now: bool = False

    @classmethod
    def read(cls, path: Path) -> Request:
        """The request of a JSON file, which has the fields above. Raises PlatformError, which repeats none of it."""
        try:
            content = path.read_bytes()
            object_parser(_LARGEST_REQUEST, 2)(content)
            # From JSON: strictly read, a dataclass is made of no Python object but of one of its own.
            return TypeAdapter(cls).validate_json(content)
        except OSError as error:
            why = str(error.strerror)
        except Refused:
            why = "it is no JSON object, or one that names a field twice"
        except ValidationError as error:
            known = {each.name for each in fields(cls)}
            wrong = {str(one["loc"][0]) if one["loc"] and one["loc"][0] in known else "" for one in error.errors()}
            why = ", ".join(f"{name} is not as it must be" if name else "it has other fields" for name in sorted(wrong))
        raise PlatformError(
            f"The request {path} cannot be used: {why}. Nothing was erased. Give subject (a text) and, as wanted, game "
            "(a text), persons, organizations, profiles (lists of texts) and now (true or false)."
        )

    @property
    def ids(self) -> SubjectIds:
        """Which persons and profiles that is."""
        return SubjectIds.of(self.subject, self.persons, self.organizations, self.profiles)


@dataclass(frozen=True)
class Done:
    """A signed receipt, and whether anything is left."""

    receipt: Mapping[str, Any]
    left: int
    """Rows, and things that nobody can look into."""
    kept: Sequence[str]
    """Who keeps former versions that were to be purged at once, as sentences."""
    stays: Sequence[str]
    """What was left as it is, with the reason and what to do, as sentences."""


NEAR_UNKNOWN = (
    "Near ids that only the vault, quarantine, raw objects or a spool has are not listed: of the vault lower, upper "
    "and title case and NFC and NFD were tried, the others were not looked through."
)


def near_ids(settings: Settings, request: Request) -> list[tuple[str, str]]:
    """(id, where it is) of ids that are not the request's and differ from one of them by `pii.folding` only; sorted.

    Reads the subject columns of every table that an erasure reaches. The vault has ids by keyed hash only: it is asked
    for the id in other cases and forms. Raises IdRefused.
    """
    vault, asked = open_vault(settings), {request.subject, *request.ids.ids}
    reached = _places(settings, request, None)
    if not settings.pii.folding:
        return []
    wanted = {_folded(settings, id_) for id_ in asked}

    def is_near(id_: str | None) -> bool:
        return id_ is not None and id_ not in asked and _folded(settings, id_) in wanted

    of_tables = (place for place in reached if isinstance(place, Tables))
    found = {near for place in of_tables for near in place.near(is_near, request.game)}
    forms = {unicodedata.normalize(form, id_) for form in ("NFC", "NFD") for id_ in asked}
    forms |= {change(form) for form in forms for change in (str.lower, str.upper, str.capitalize, str.title)}
    for id_ in filter(is_near, forms):
        if vault.keyring.count(erasure.Subject(id_, vault.keyring.ref(id_), request.game).owner):
            found.add((id_, VAULT.name))
    return sorted(found)


def _folded(settings: Settings, id_: str) -> str:
    for name, fold in _FOLDS.items():
        id_ = fold(id_) if name in settings.pii.folding else id_
    return id_


def erase(settings: Settings, request: Request, callbacks: Callbacks | None = None) -> Done:
    """Erase a subject everywhere. Raises IdRefused and GameRefused before anything is done, then what each place
    raises; the same call does the rest."""
    vault, reached = open_vault(settings), _places(settings, request, callbacks)
    subject = erasure.subject(vault, request.subject, request.game)
    keys, done = erasure.erase(vault, subject, reached)
    tables = _covered(settings, reached, done)
    missed = _not_reached(settings, request, tables)
    receipt = receipts.receipt(vault.keyring, subject, keys, done, utc_now(), missed, tables)
    kept = [
        f"{place.name}: {because}"
        for place in reached
        if isinstance(place, TablePlace)
        for because in place.run.purged.get(place.name, ())
    ]
    stays = list(dict.fromkeys(sentence for one in done for sentence in one.stays))
    return Done(receipt, max(sum(one.left for one in done), len(stays)), kept, stays)


def finish(settings: Settings, callbacks: Callbacks | None = None) -> Iterator[BatchReport]:
    """Finish erasures of engagements and profiles that were interrupted. Without a receipt: erase again for that."""
    return Eraser(settings, open_stores(settings), callbacks or Callbacks()).finish()


def verify(settings: Settings, receipt: Path, request: Request | None) -> list[receipts.Check]:
    """Look again at what a receipt promises; request None: without the id. Raises ReceiptRefused."""
    reached = [] if request is None else _places(settings, request, None)
    subject = None if request is None else request.subject
    return receipts.verify(open_vault(settings), receipts.read(receipt), reached, subject)


def _covered(settings: Settings, reached: Sequence[erasure.Erasable], done: Sequence[erasure.Erased]) -> dict[str, str]:
    """Every table in the lake -> COVERED, NOT_DONE, WITHOUT (personal columns, by declaration) or NOT_COVERED."""
    undone = {one.name for one in done if one.stays}
    undone |= {name for place in reached if isinstance(place, SubjectTables) for name in place.damaged}
    of_tables = [place for place in reached if isinstance(place, Tables)]
    looked_into = {VAULT.name, REFUSED.name, *(table.name for place in of_tables for table in place.tables())}

    def state(name: str) -> str:
        if name in looked_into:
            return NOT_DONE if name in undone else COVERED
        return WITHOUT if name in WITHOUT_PERSONAL_COLUMNS else NOT_COVERED

    return {name: state(name) for name in log.tables_anywhere(settings.lake)}


def _not_reached(settings: Settings, request: Request, tables: Mapping[str, str]) -> list[str]:
    """Where the subject may be and nobody has looked. tables: of `_covered`."""
    without_subject = [stream.table.name for stream in declarations(settings).streams if stream.subject is None]
    found = [
        *NOT_ERASED,
        *(name for name, state in tables.items() if state == NOT_COVERED and name not in without_subject),
        *(f"{name} (declared without subject)" for name in without_subject),
    ]
    found += [
        f"objects of raw events at {raw.name} (no queue is configured, or pii.raw_objects says so)"
        for raw in _raw_objects(settings)
        if raw.settings.games.bucket is not None and not raw.is_reached
    ]
    if settings.games.bucket is None:
        found.append("objects of raw events in the emulator of `up` and `services`, which are gone once that stops")
    if request.game is not None:
        found += ["engagement/*, profile/* and what is declared (only a game was asked for)"]
    return found


def _places(settings: Settings, request: Request, callbacks: Callbacks | None) -> list[erasure.Erasable]:
    given = {"person": request.persons, "organization": request.organizations, "profile": request.profiles}
    for field, ids in {"The subject's id": (request.subject,), **given}.items():
        # Not by themselves: messages are kept by Dagster.
        for id_ in ids:
            checked_id(id_, field, settings)
    if request.game is not None and not GAME_ID.fullmatch(request.game):
        raise GameRefused
    found: list[erasure.Erasable] = [
        SpooledRecords(settings),
        StoredObjects(settings),
        *game_places(settings),
        # After the tables that it is counted from.
        PlayersKept(settings),
    ]
    if request.game is None:
        # Declared entities before engagement/quarantine, in which they land what they refuse; from here on they refuse
        # nothing that is about the person.
        found += [*declared_places(settings), *places(settings, request.ids, callbacks, now=request.now)]
    # Last, for they may be many.
    return [*found, *(raw for raw in _raw_objects(settings) if raw.is_reached)]


def _raw_objects(settings: Settings) -> list[RawObjects]:
    feeds = (shipped(settings), *declarations(settings).feeds)
    return [RawObjects(feed.settings(settings), feed) for feed in feeds]
