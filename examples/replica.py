"""A copy of the engagements that stand, in one DuckDB file that follows what changed, and a page that shows it. No JVM.

    python -m examples.replica refresh replica.duckdb
    python -m examples.replica page replica.duckdb replica.html

DuckDB commits rows and position together, and the consumer's cursor moves after that: a crash between the two makes
the same changes come again, over themselves. DuckDB keeps the bytes of rows that it dropped: delete the file after an
erasure, and refresh.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import duckdb
import plotly.graph_objects as go
import pyarrow as pa
import typer

from engagement_platform.consumers import Changes, Position, TooFarBehind
from engagement_platform.lake import log
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.settings import Settings

MAX_ROWS = 100_000
_LABEL = 48
"""Characters of an id that a picture shows; an id may have 256."""

PERSONS = "SELECT person_id, organization_id, count(*) AS n FROM engagement GROUP BY ALL ORDER BY n DESC, 1, 2 LIMIT 20"
CONVERTED = (
    "SELECT organization_id, count(*) AS n FROM engagement WHERE person_id <> source_person_id "
    "GROUP BY ALL ORDER BY n DESC, 1 LIMIT 10"
)
DAYS = "SELECT engagement_date, count(*) FROM engagement GROUP BY ALL ORDER BY engagement_date DESC LIMIT 60"


def refresh(settings: Settings, path: Path, *, name: str = "replica", max_rows: int = MAX_ROWS) -> bool:
    """Bring the file up to now; whether all of its rows were replaced: it is new, too old, of another lake, or a copy
    was put back.

    name: of the consumer; each file needs its own. Raises ConsumerRefused, CursorMoved, StoresUnavailable.
    """
    changes = Changes(settings.lake, name=name, start="now", max_rows=max_rows, store_url=settings.store_url)
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS position (version BIGINT, rows BIGINT, table_id VARCHAR)")
        # A file that was made before there was one.
        connection.execute("ALTER TABLE position ADD COLUMN IF NOT EXISTS table_id VARCHAR")
        found = connection.execute("SELECT version, rows, table_id FROM position").fetchone()
        reached = None if found is None else Position(*found)
        now = log.table_id(NOTIFICATION.uri(changes.root))
        if reached is not None and reached.table_id == now and reached >= changes.committed:
            try:
                _follow(connection, changes, reached)
            except TooFarBehind:
                typer.echo("Changes since the last refresh are no longer kept; all rows are replaced.", err=True)
            else:
                return False
        snapshot = changes.resnapshot()
        connection.execute("BEGIN")
        connection.execute("DROP TABLE IF EXISTS engagement")
        connection.register("rows", snapshot.schema.empty_table())
        connection.execute("CREATE TABLE engagement AS SELECT * FROM rows")
        _put(connection, snapshot, snapshot.position)
        changes.commit()
        _follow(connection, changes, snapshot.position)
        return True


def _follow(connection: duckdb.DuckDBPyConnection, changes: Changes, reached: Position) -> None:
    """All batches that wait. One that comes once more, after a crash, does not move the position back."""
    for batch in changes:
        reached = max(reached, batch.position)
        updates = batch.updates.drop_columns(["previous_person_id"])
        connection.execute("BEGIN")
        for rows in (batch.inserts, updates, batch.deletes):
            connection.register("gone", rows)
            connection.execute(
                "DELETE FROM engagement USING gone WHERE engagement.organization_id = gone.organization_id "
                "AND engagement.engagement_id = gone.engagement_id"
            )
        _put(connection, (batch.inserts, updates), reached)
        changes.commit()
    # The cursor also moves past what changed no row, and the file must not look older than it.
    connection.execute("BEGIN")
    _put(connection, (), max(reached, changes.committed))


def _put(connection: duckdb.DuckDBPyConnection, some: Iterable[pa.Table], position: Position) -> None:
    """Rows and position into the transaction that is under way, and its commit."""
    for rows in some:
        connection.register("rows", rows)
        connection.execute("INSERT INTO engagement BY NAME SELECT * FROM rows")
    connection.execute("DELETE FROM position")
    connection.execute("INSERT INTO position VALUES (?, ?, ?)", [position.version, position.rows, position.table_id])
    connection.execute("COMMIT")


def page(path: Path) -> str:
    """The file as one HTML page that loads nothing from anywhere: counts, and three pictures."""
    with duckdb.connect(str(path), read_only=True) as connection:
        days, persons, converted = (connection.execute(query).fetchall() for query in (DAYS, PERSONS, CONVERTED))
        counts = connection.execute("SELECT count(*), count(DISTINCT organization_id) FROM engagement").fetchone()
    pictures = (
        _bars("Engagements per day", [(str(day), count) for day, count in reversed(days)]),
        _bars("Persons with most engagements", [(f"{_short(p)}, {_short(o)}", count) for p, o, count in persons]),
        _bars("Converted engagements", [(_short(organization), count) for organization, count in converted]),
    )
    engagements, organizations = counts or (0, 0)
    figures = f"{engagements:,} engagements of {organizations:,} organizations, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    charts = "\n".join(
        picture.to_html(full_html=False, include_plotlyjs=number == 0, include_mathjax=False)
        for number, picture in enumerate(pictures)
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Engagements</title>\n</head>\n'
        f"<body>\n<h1>Engagements as they are now</h1>\n<p>{figures}</p>\n{charts}\n</body>\n</html>\n"
    )


def _bars(title: str, counted: list[tuple[str, int]]) -> go.Figure:
    # Numbers as places and names as their text: two ids that look the same when cut short stay two bars.
    figure = go.Figure(go.Bar(x=list(range(len(counted))), y=[count for _, count in counted]))
    figure.update_layout(title=title, template="simple_white")
    # Plotly takes some tags in labels for what they are.
    return figure.update_xaxes(tickvals=list(range(len(counted))), ticktext=[escape(name) for name, _ in counted])


def _short(name: str) -> str:
    return name if len(name) <= _LABEL else f"{name[:_LABEL]}…"


app = typer.Typer(help=__doc__, no_args_is_help=True)


@app.command("refresh")
def refresh_command(file: Path, name: str = "replica") -> None:
    """Put what changed into the file; a new one gets everything that stands."""
    typer.echo("All rows were replaced." if refresh(Settings(), file, name=name) else "The file is up to date.")


@app.command("page")
def page_command(file: Path, out: Path) -> None:
    """Draw the file."""
    out.write_text(page(file), encoding="utf-8")


if __name__ == "__main__":
    app()
