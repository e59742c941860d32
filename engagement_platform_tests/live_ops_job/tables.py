"""Tables of games that grow through delta-rs, with rows as the ingest job writes them. No assertions here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from pydantic import SecretStr

from engagement_platform.alert_sections import AlertingSettings
from engagement_platform.engine.model import Transaction
from engagement_platform.lake import light
from engagement_platform.lake.arrow import schema_of, table_of
from engagement_platform.pipelines.games.registry import registry
from engagement_platform.settings import Settings

Row = dict[str, Any]


class Games:
    """A lake with tables of declared types, each made when its first rows come."""

    def __init__(self, folder: Path, *urls: str) -> None:
        alerting = AlertingSettings(urls=[SecretStr(url) for url in urls], settle=timedelta(0))
        self.settings = Settings(home=folder, alerting=alerting)
        self.commits = 0

    def append(self, kind: str, rows: Sequence[Row], ingested: datetime) -> None:
        """One commit of one table. rows: what is not given is null, but for event_date."""
        made = [{**row, "event_date": row["event_ts"].date(), "ingestion_ts": ingested} for row in rows]
        self._append(kind, table_of(made, registry()[kind].table))

    def append_many(self, kind: str, times: np.ndarray[Any, Any], players: Sequence[str], ingested: datetime) -> None:
        """One commit of events of the game g1, at these microseconds since 1970."""
        table, count = registry()[kind].table, len(times)
        micros = pa.array(times.astype("int64"))
        columns = {
            "event_ts": micros.cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")),
            "event_date": micros.cast(pa.timestamp("us")).cast(pa.date32()),
            "game_id": pa.repeat(pa.scalar("g1"), count),
            "player_id": pa.array([players[n % len(players)] for n in range(count)]),
            "ingestion_ts": pa.repeat(pa.scalar(ingested, pa.timestamp("us", "UTC")), count),
        }
        schema = schema_of(table)
        arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in schema]
        self._append(kind, pa.table(arrays, schema=schema))

    def _append(self, kind: str, rows: pa.Table) -> None:
        table = registry()[kind].table
        uri = table.uri(self.settings.lake)
        if not Path(uri).exists():
            light.create(uri, table)
        self.commits += 1
        light.append(DeltaTable(uri), rows, Transaction("job", self.commits))
