"""Commands that read what jobs made: read, verify, perftest. What the last does is `benchmarks/perftest`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from engagement_platform.cli.common import Json, flag, print_json, print_table
from engagement_platform.errors import PlatformError, plain

SHOWN_ROWS = 20


def read(
    table: Annotated[str, typer.Argument(help="engagement/current, engagement/mapping, profile/current, …")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all rows here: .parquet, .csv or .jsonl. Replaces it.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only rows for which this Spark SQL is true.")
    ] = None,
    version: Annotated[int | None, typer.Option(min=0, help="The table as of this version; not for a view.")] = None,
) -> None:
    """Read a table of the lake, or a view, into one file; without --out show the first 20 rows.

    engagement/current is the place to read engagements: newest identities and contents, no deleted rows. So is
    engagement/mapping for names, one row per id. engagement/data gets changes up to mutation.max_pending later, and
    holds deleted rows with a null person_id. Needs Spark: seconds with ENGAGEMENT_PLATFORM_SPARK__REMOTE, up to a
    minute without. Exit status: 0, or 1 with the reason.
    Example: engagement-platform read engagement/current --out current.parquet --where "organization_id = 'org-7'"
    """
    from engagement_platform.consumers.reading import check_asked, first, rows_of, save
    from engagement_platform.settings import Settings

    settings = Settings()
    check_asked(settings, table, version, out)

    from engagement_platform.lake.lake import Lake
    from engagement_platform.lake.session import spark_session

    with spark_session(settings, "read", reads_only=True) as spark:
        rows = rows_of(Lake(spark, settings), table, where=where, version=version)
        if out is not None:
            count = save(rows, table, out)
            typer.echo(f"{count:,} {'row' if count == 1 else 'rows'} of {table} in {out}")
            return
        columns, values = first(rows, table, SHOWN_ROWS + 1)
    show_rows(table, columns, values)


def show_rows(table: str, columns: list[str], values: list[list[object]]) -> None:
    """Print the first rows, nested values as JSON, nulls apart from empty texts."""
    from rich.text import Text

    def shown(value: object) -> object:
        if isinstance(value, dict | list):
            return json.dumps(value, ensure_ascii=False)
        return Text("null", style="dim") if value is None else str(value)

    print_table(columns, [list(map(shown, row)) for row in values[:SHOWN_ROWS]])
    more = len(values) > SHOWN_ROWS
    count = f"The first {SHOWN_ROWS} rows" if more else f"All rows: {len(values)}"
    typer.echo(f"{count} of {table}.{' With --out FILE all of them.' if more else ''}")


def verify(
    as_json: Json = False,
    identity: Annotated[
        bool, flag("--identity", "Instead: recompute identities, names and contents, count aliases. Needs no broker.")
    ] = False,
    sample: Annotated[
        int | None, typer.Option(min=1, help="--identity: so many organizations, others every day. Default: all.")
    ] = None,
) -> None:
    """Read the topic again and compare with the tables: nothing lost, nothing doubled, all announced. Changes nothing.

    With --identity: whether every identity, name and patched content follows from events and requests, and each alias
    stands once.
    Exit status: 0 when all is right, 1 when something is wrong. Example: engagement-platform verify
    """
    from engagement_platform.maintenance.verify.identity import identity_findings
    from engagement_platform.maintenance.verify.messages import verify as findings_of
    from engagement_platform.settings import Settings

    if sample is not None and not identity:
        raise typer.BadParameter("--sample goes with --identity")
    settings = Settings()
    if identity:
        from engagement_platform.lake.session import spark_session

        with spark_session(settings, "verify", reads_only=True) as spark:
            findings = identity_findings(settings, spark, sample)
    else:
        findings = findings_of(settings)
    for finding in findings:
        if as_json:
            print_json({**vars(finding), "examples": list(finding.examples)})
        else:
            verdict = (
                "ok" if not finding.wrong else f"{finding.wrong:,} WRONG, such as {plain(', '.join(finding.examples))}"
            )
            typer.echo(f"{finding.check:18} {finding.looked_at:>12,} looked at, {verdict}  ({finding.meaning})")
    raise typer.Exit(int(any(finding.wrong for finding in findings)))


def perftest(
    spec: Annotated[Path, typer.Argument(help="JSON: runs, operations, methods, queries, cluster.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Of chart and log. Default: <home>/perftest/ID.")
    ] = None,
) -> None:
    """Time each way of reading profile/current, every permutation of SPEC in a fresh Spark; print table and ranking.

    Needs a checkout of the repository. A permutation takes 20 to 60 s beside what it measures, most of it Spark
    starting. Figures are rows of perftest/timer in the lake; a permutation whose row is there is not run again, so the
    same command goes on after an interruption. The spec's token, and passwords in its conf, are in no log, table or
    command line of a remote cluster.
    Exit status: 0, or 1 with the reason. Example: engagement-platform perftest spec.json
    """
    try:
        from benchmarks.perftest.run import measure_spec
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "benchmarks":
            raise
        raise PlatformError(
            "perftest needs the repository's checkout, whose folder benchmarks/ cannot be imported from here: run it "
            "in that folder as `python -m engagement_platform.cli perftest SPEC`."
        ) from None

    measure_spec(spec, out, typer.echo)
