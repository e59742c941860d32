"""How frames of a batch are computed once and joined cheaply. What is in them is not known here."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

BROADCAST_ROWS = 1_000_000
"""Up to this many keys of a batch (about 60 bytes each) go to every task, and neither the batch nor the Data Table is
shuffled. Kept frames have no statistics, so Spark would not find that out before it has shuffled both."""


def kept(frame: DataFrame) -> DataFrame:
    """The frame, computed at its first use and never again; freed when nothing refers to it.

    Not persist(): a persisted frame keeps its whole plan, and every frame built on it is analysed anew down to the
    source, over Connect at each call. Behind a local checkpoint plans stay short. Losing an executor loses the
    blocks and fails the batch, which is then replayed.
    """
    return frame.localCheckpoint(eager=False)


def small(frame: DataFrame, rows: int) -> DataFrame:
    """The frame with a broadcast hint when it has few enough rows."""
    return F.broadcast(frame) if rows <= BROADCAST_ROWS else frame
