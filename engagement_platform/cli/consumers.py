"""Commands of those who read changes: consume, consumers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from engagement_platform.cli.common import Follow, Json, flag, print_json, print_table


def consume(
    name: Annotated[str, typer.Option(help="Of the consumer; its cursor is kept under it.")],
    output_format: Annotated[
        Literal["jsonl", "parquet"], typer.Option("--format", help="How rows are written.")
    ] = "jsonl",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="jsonl: append to this file; default: print. parquet: a folder, a file a batch."
        ),
    ] = None,
    follow: Follow = False,
    start: Annotated[
        str,
        typer.Option(help="Where a new consumer begins: beginning, now, or a time with a zone."),
    ] = "beginning",
    organization: Annotated[list[str] | None, typer.Option(help="Only this one; repeatable. Default: all.")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Only this column, and the ids; repeatable. Default: all.")
    ] = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Most changes in a batch.")] = 100_000,
    resnapshot: Annotated[
        bool, flag("--resnapshot", "First all rows as they are now, in place of what --out has; then changes.")
    ] = False,
    table: Annotated[
        str | None,
        typer.Option(help="Instead of engagements: rows added to this append-only table, such as shop/click."),
    ] = None,
) -> None:
    """Read what changed since last time: each changed engagement as it is now, with change_type. Needs no Spark.

    With --table the rows that were added to a table, as they were written; --organization, --column and --resnapshot
    are for engagements only.

    The cursor moves when a batch is written whole. After a crash a batch comes again: rows are as they are now, so
    putting them in place by organization_id and engagement_id twice does no harm. With --follow until Ctrl-C.
    Exit status: 0 when all is read, 1 with the reason, such as a consumer that was away for too long (--resnapshot).
    Example: engagement-platform consume --name scoring --follow
    """
    import sys

    from engagement_platform.consumers import Appends, Changes
    from engagement_platform.consumers.output import JsonLines, ParquetFiles, cannot_write, deliver
    from engagement_platform.settings import Settings

    if output_format == "parquet" and out is None:
        raise cannot_write(None, "--format parquet needs --out FOLDER")
    settings = Settings()
    owner = f"{name} of {table or 'engagements'} in {settings.lake}"
    output = ParquetFiles(out, owner) if output_format == "parquet" and out else JsonLines(out or sys.stdout)
    if table is not None:
        if organization or column or resnapshot:
            raise typer.BadParameter("--table takes no --organization, --column, --resnapshot")
        appends = Appends(
            settings.lake, table, name=name, start=start, max_rows=max_rows, follow=follow,
            poll=settings.consumers.poll, store_url=settings.store_url,
        )  # fmt: skip
        for added in deliver(appends, output):
            typer.echo(f"{added.rows.num_rows:,} rows, through version {added.position.version}", err=True)
        return
    changes = Changes(
        settings.lake, name=name, organizations=organization, columns=column, start=start,
        max_rows=max_rows, follow=follow, poll=settings.consumers.poll, store_url=settings.store_url,
    )  # fmt: skip
    if resnapshot:
        count = output.replace(changes.resnapshot())
        changes.commit()
        typer.echo(f"{count:,} rows as of now", err=True)
    for batch in deliver(changes, output):
        typer.echo(
            f"{batch.inserts.num_rows:,} inserted, {batch.updates.num_rows:,} updated, {batch.deletes.num_rows:,} "
            f"deleted, through version {batch.position.version}",
            err=True,
        )


def consumers(
    as_json: Json = False,
    forget: Annotated[
        str | None, typer.Option(metavar="NAME", help="Remove this consumer's cursor; nothing is kept for it any more.")
    ] = None,
    forget_stream: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Let this Spark stream begin anew with another checkpoint folder."),
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="With --forget: of the consumers of this table's rows, such as shop/click.")
    ] = None,
) -> None:
    """Show every consumer of the lake: what it follows, where it is, what waits for it and for how long.

    Of what changed in engagements, and of the rows of a table (consume --table). Needs no Spark.

    VACUUM keeps what a consumer has yet to read, for consumers.keep_for at most.
    Exit status: 0, or 1 when one is lost or later than consumers.max_lag, or there is none to be forgotten.
    Example: engagement-platform consumers
    """
    from datetime import UTC, datetime

    from engagement_platform.consumers.append_reader import cursor_root
    from engagement_platform.consumers.lag import lags, late
    from engagement_platform.consumers.reader import lake_root
    from engagement_platform.engine.cursors import CursorStore, StreamCheckpoints
    from engagement_platform.engine.database import open_engine
    from engagement_platform.settings import Settings

    settings = Settings()
    engine = open_engine(settings.store_url)
    cursors, streams = CursorStore(engine), StreamCheckpoints(engine)
    lake = lake_root(settings.lake)
    of = lake if table is None else cursor_root(lake, table)
    forgotten = {}
    if forget is not None:
        forgotten[forget] = cursors.forget(of, forget)
    if forget_stream is not None:
        forgotten[forget_stream] = streams.forget(forget_stream)
    for name, was_there in forgotten.items():
        typer.echo(f"{name} is forgotten" if was_there else f"There is no {name}", err=not was_there)
    if forgotten:
        raise typer.Exit(0 if all(forgotten.values()) else 1)
    now = datetime.now(UTC)
    found = lags(settings, engine)
    if as_json:
        print_json({"consumers": [lag.as_json(now) for lag in found], "streams": streams.all()})
    else:
        print_table(
            ("consumer", "of", "version", "waiting", "commits", "oldest", "read", "last commit"),
            [
                (lag.name, lag.table, str(lag.position.version), lag.behind.rows, lag.behind.commits,
                 f"{lag.age_s(now):.0f} s", "" if lag.rows_read is None else lag.rows_read,
                 f"{lag.committed_ts:%Y-%m-%d %H:%M:%S}")
                for lag in found
            ],
        )  # fmt: skip
    sentences = late(found, now, settings.consumers.max_lag)
    for sentence in sentences:
        typer.echo(sentence, err=True)
    raise typer.Exit(1 if sentences else 0)
