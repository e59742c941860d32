"""API keys of games: made, listed, revoked, recognized. Only a hash of a key is stored."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Column, MetaData, String, Table, select

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


class IngestKeyRefused(PlatformError):
    """A name that no game can have, or an id that no key has."""


@dataclass(frozen=True)
class IngestKey:
    """One key, without its secret."""

    key_id: str
    game: str
    secret_hash: str
    created_ts: datetime
    revoked_ts: datetime | None = None


class IngestKeys:
    """The keys of one database. Raises StoresUnavailable."""

    def __init__(self, url: str) -> None:
        self.engine = open_engine(url)
        ensure_tables(self.engine, METADATA)

    def add(self, game: str) -> tuple[IngestKey, str]:
        """A new key of a game, and its text, which nobody can find out later. Raises IngestKeyRefused."""
        if not _GAME.fullmatch(game):
            raise IngestKeyRefused(
                f"A game cannot be called {game!r}: small letters, digits, - and _, at most 64. No key was made."
            )
        secret = secrets.token_urlsafe(32)
        made = IngestKey(secrets.token_hex(6), game, _hashed(secret), utc_now())
        with writing(self.engine, "ingest-keys") as connection:
            connection.execute(INGEST_KEY.insert().values(**vars(made)))
        return made, f"ep_{made.key_id}_{secret}"

    def all(self) -> list[IngestKey]:
        """Every key, by game and age."""
        query = select(INGEST_KEY).order_by(INGEST_KEY.c.game, INGEST_KEY.c.created_ts, INGEST_KEY.c.key_id)
        with reading(self.engine) as connection:
            return [IngestKey(**row) for row in connection.execute(query).mappings()]

    def revoke(self, key_id: str) -> IngestKey:
        """Let a key be refused from now on; again changes nothing. Raises IngestKeyRefused."""
        with writing(self.engine, "ingest-keys") as connection:
            mine = INGEST_KEY.c.key_id == key_id
            valid = INGEST_KEY.update().where(mine, INGEST_KEY.c.revoked_ts.is_(None))
            connection.execute(valid.values(revoked_ts=utc_now()))
            row = connection.execute(select(INGEST_KEY).where(mine)).mappings().one_or_none()
        if row is None:
            raise IngestKeyRefused(
                f"There is no API key with the id {key_id!r}. Nothing was changed. `engagement-platform ingest-key "
                "list` shows their ids."
            )
        return IngestKey(**row)


class KeyCache:
    """Recognizes keys by what the database had at the last `refresh`, so that a request asks no database.

    While the database does not answer, known keys go on to count.
    """

    def __init__(self, keys: IngestKeys) -> None:
        self._keys = keys
        self._known = {key.key_id: key for key in keys.all()}
        self.unanswered: StoresUnavailable | None = None
        """Why the database was not read the last time."""

    def refresh(self) -> None:
        """Read the database; blocks for some milliseconds."""
        try:
            self._known, self.unanswered = {key.key_id: key for key in self._keys.all()}, None
        except StoresUnavailable as error:
            self.unanswered = error

    def recognize(self, text: str) -> IngestKey | None:
        """Whose key it is, revoked ones included; None for any other text.

        Takes as long for a wrong secret as for a right one. A plain hash will do: nobody can guess 256 random bits.
        """
        begin, _, rest = text.partition("_")
        key_id, _, secret = rest.partition("_")
        key = self._known.get(key_id)
        right = hmac.compare_digest(_hashed(secret), _NOBODY if key is None else key.secret_hash)
        return key if right and begin == "ep" else None


def _hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
