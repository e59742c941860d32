"""API keys of games: made, listed, revoked, recognized. Only a hash of a key is stored."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Column, Engine, MetaData, String, Table, select

from engagement_platform.engine.database import StoresUnavailable, ensure_tables, open_engine, reading, utc_now, writing
from engagement_platform.engine.schema import UtcTimestamp
from engagement_platform.errors import PlatformError

METADATA = MetaData()

INGEST_KEY = Table(
    "ingest_key",
    METADATA,
    Column("key_id", String(16), primary_key=True),
    Column("game", String(64), nullable=False),
    Column("secret_hash", String(64), nullable=False),
    Column("created_ts", UtcTimestamp, nullable=False),
    Column("revoked_ts", UtcTimestamp),
)

_GAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
# No text is known to have it.
_NOBODY = "0" * 64


class GameNameRefused(PlatformError):
    """A name that no game can have."""

    def __init__(self, game: str) -> None:
        super().__init__(
            f"A game cannot be called {game!r}: small letters, digits, - and _, at most 64. No key was made."
        )


class UnknownIngestKey(PlatformError):
    """There is no API key with this id."""

    def __init__(self, key_id: str) -> None:
        super().__init__(
            f"There is no API key with the id {key_id!r}. Nothing was changed. `engagement-platform ingest-key list` "
            "shows their ids."
        )


@dataclass(frozen=True)
class IngestKey:
    """One key, without what it is proved with."""

    key_id: str
    game: str
    created_ts: datetime
    revoked_ts: datetime | None


class IngestKeys:
    """The keys of one database. Raises StoresUnavailable. clock: for times that are shown only."""

    def __init__(self, url: str, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.engine: Engine = open_engine(url)
        self._clock = clock
        ensure_tables(self.engine, METADATA)

    def add(self, game: str) -> tuple[IngestKey, str]:
        """A new key of a game, and its text, which nobody can find out later. Raises GameNameRefused."""
        if not _GAME.fullmatch(game):
            raise GameNameRefused(game)
        made = IngestKey(secrets.token_hex(6), game, self._clock(), None)
        secret = secrets.token_urlsafe(32)
        with writing(self.engine, "ingest-keys") as connection:
            connection.execute(INGEST_KEY.insert().values(**vars(made), secret_hash=_hashed(secret)))
        return made, f"ep_{made.key_id}_{secret}"

    def all(self) -> list[IngestKey]:
        """Every key, by game and age."""
        return [key for key, _ in self._rows()]

    def revoke(self, key_id: str) -> IngestKey:
        """Let a key be refused from now on; doing it twice changes nothing. Raises UnknownIngestKey."""
        with writing(self.engine, "ingest-keys") as connection:
            mine = INGEST_KEY.c.key_id == key_id
            connection.execute(
                INGEST_KEY.update().where(mine, INGEST_KEY.c.revoked_ts.is_(None)).values(revoked_ts=self._clock())
            )
            row = connection.execute(select(INGEST_KEY).where(mine)).one_or_none()
        if row is None:
            raise UnknownIngestKey(key_id)
        return IngestKey(row.key_id, row.game, row.created_ts, row.revoked_ts)

    def _rows(self) -> list[tuple[IngestKey, str]]:
        query = select(INGEST_KEY).order_by(INGEST_KEY.c.game, INGEST_KEY.c.created_ts, INGEST_KEY.c.key_id)
        with reading(self.engine) as connection:
            rows = connection.execute(query).all()
        return [(IngestKey(row.key_id, row.game, row.created_ts, row.revoked_ts), row.secret_hash) for row in rows]

    def known(self) -> dict[str, tuple[IngestKey, str]]:
        """By id, each with the hash of its secret."""
        return {key.key_id: (key, hashed) for key, hashed in self._rows()}


class Doorkeeper:
    """Recognizes keys, with what the database said a few seconds ago, so that a request asks no database.

    refresh_s: how old that may be. When the database does not answer, what is known goes on to count.
    """

    def __init__(self, keys: IngestKeys, refresh_s: float, *, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._keys, self._refresh_s, self._elapsed = keys, refresh_s, elapsed
        self._known = keys.known()
        self._asked = elapsed()
        self.unanswered: StoresUnavailable | None = None
        """Why the database was not read the last time."""

    def refresh(self) -> None:
        """Ask the database when it is time; blocks for some milliseconds, so it has a thread of its own."""
        if self._elapsed() - self._asked < self._refresh_s:
            return
        try:
            self._known, self.unanswered = self._keys.known(), None
        except StoresUnavailable as error:
            self.unanswered = error
        self._asked = self._elapsed()

    def recognize(self, text: str) -> IngestKey | None:
        """Whose key it is, revoked ones included; None for any other text.

        Takes as long for a wrong secret as for a right one. A plain hash will do: nobody can guess 256 random bits.
        """
        begin, _, rest = text.partition("_")
        key_id, _, secret = rest.partition("_")
        key, hashed = self._known.get(key_id, (None, _NOBODY))
        right = hmac.compare_digest(_hashed(secret), hashed)
        return key if right and begin == "ep" else None


def _hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
