"""Events as Spark counts them, by a loop in plain Python, and a store that takes them. No assertions here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import SecretStr

from engagement_platform.engine.database import open_engine
from engagement_platform.pipelines.games.live_ops_store import LiveOpsStore
from engagement_platform.settings import AlertingSettings, Settings

Row = dict[str, Any]
Event = tuple[str, Row]
"""Type and columns; what is not there is null."""

_LONGS = (
    "minute", "events", "purchases", "revenue_micros", "errors", "first_us", "last_us", "level",
)  # fmt: skip
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("game", "player_id", "session_id")),
        *((name, pa.int64()) for name in _LONGS),
        ("changes", pa.list_(pa.string())),
    ]
)


def paid(kind: str, row: Row) -> int:
    """Millionths of a dollar."""
    if kind != "purchase":
        return 0
    dollars = row.get("price_usd") or (row["price"] if row.get("currency") == "USD" else 0)
    return 0 if dollars > 1e6 else round(dollars * 1e6)


def groups(events: Iterable[Event]) -> pa.Table:
    """One group for each game, minute, player and session."""
    found: dict[tuple[Any, ...], Row] = {}
    for kind, row in events:
        micros = round((row["event_ts"] - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))
        key = (row["game_id"], micros // 60_000_000, row.get("player_id"), row.get("session_id"))
        group = found.setdefault(
            key,
            {**dict.fromkeys(_LONGS, 0), **dict(zip(("game", "minute", "player_id", "session_id"), key, strict=True)),
             "first_us": micros, "last_us": micros, "changes": []},
        )  # fmt: skip
        group["events"] += 1
        group["purchases"] += kind == "purchase"
        group["errors"] += kind == "crash"
        group["revenue_micros"] += paid(kind, row)
        group["first_us"], group["last_us"] = min(group["first_us"], micros), max(group["last_us"], micros)
        group["level"] = max(group["level"], row.get("level") or 0)
        change = row.get("live_ops_change")
        group["changes"] = sorted({*group["changes"], *([change] if change else [])})
    return pa.Table.from_pylist(list(found.values()), schema=SCHEMA)


class Games:
    """What batches of events have been counted into."""

    def __init__(self, folder: Path, *urls: str) -> None:
        alerting = AlertingSettings(urls=[SecretStr(url) for url in urls], settle=timedelta(0))
        self.settings = Settings(home=folder, alerting=alerting)
        self.store = LiveOpsStore(open_engine(self.settings.store_url))
        self.batches = 0

    def append(self, kind: str, rows: Sequence[Row], ingested: datetime) -> None:
        """One batch of events of one type."""
        self.add([(kind, row) for row in rows], ingested)

    def add(self, events: Sequence[Event], ingested: datetime) -> None:
        """One batch."""
        self.store.add("ingest-game-events@1.test", self.batches, groups(events), ingested)
        self.batches += 1

    def append_many(self, kind: str, times: np.ndarray[Any, Any], players: Sequence[str], ingested: datetime) -> None:
        """One batch of events of the game g1, at these microseconds since 1970."""
        moments = times.astype("int64").astype("datetime64[us]").tolist()
        rows = (
            {"game_id": "g1", "event_ts": at.replace(tzinfo=UTC), "player_id": players[n % len(players)]}
            for n, at in enumerate(moments)
        )
        self.add([(kind, row) for row in rows], ingested)
