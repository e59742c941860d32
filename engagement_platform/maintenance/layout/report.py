"""What the doctor found as one HTML page: figures, findings and histograms; and a folder with the newest of them.

The page loads nothing from anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from html import escape
from pathlib import Path

import plotly.graph_objects as go

from engagement_platform.engine.durable_files import write_durably
from engagement_platform.maintenance.layout.doctor import Examination
from engagement_platform.maintenance.layout.history import Outcome
from engagement_platform.maintenance.layout.remedies import readable
from engagement_platform.maintenance.layout.statistics import named_buckets

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0; width: 100% }
th, td { border-bottom: 1px solid #ddd; padding: .4em .6em; text-align: left; vertical-align: top }
td { overflow-wrap: anywhere }
"""

Done = Mapping[str, Sequence[Outcome]]
"""What was mended lately in each table, by its name, newest first."""

SHOWN = 20
"""Slices of a table whose outcome is shown."""


def page(examinations: Sequence[Examination], done: Done) -> str:
    """The whole page. Names of tables and partitions are escaped; plotly.js is in it once, 4.6 MB."""
    found = sum(len(examination.findings) for examination in examinations)
    charts = [one for one in examinations if one.facts.totals.files]
    sections = "\n".join(
        _section(one, done.get(one.facts.name, ()), f"chart-{n}", brings_plotly=one in charts[:1])
        for n, one in enumerate(examinations)
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Layout of tables</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>Layout of {len(examinations)} "
        f"{'table' if len(examinations) == 1 else 'tables'}: {found} {'finding' if found == 1 else 'findings'}</h1>\n"
        f"{sections}\n</body>\n</html>\n"
    )


def _section(examination: Examination, done: Sequence[Outcome], chart: str, *, brings_plotly: bool) -> str:
    seen, totals = examination.facts.seen, examination.facts.totals
    figures = {
        "Version": f"{seen.shape.version:,}",
        "Files": f"{totals.files:,}",
        "Bytes": readable(totals.bytes),
        "Rows": f"{totals.rows:,}",
        "Partitions": f"{totals.partitions:,}",
        "Small files": f"{100 * totals.small_files / totals.files:.0f} %" if totals.files else "–",
        "Median file": readable(totals.median_file_bytes),
        "Clustered by": seen.clustering or "–",
    }
    findings = [
        (
            f"{one.severity} {one.code}",
            f"{one.what} ({', '.join(f'{name}={value}' for name, value in one.evidence.items())})",
            one.remedy,
            str(one.gain or "–"),
        )
        for one in examination.findings
    ]
    outcomes = [
        (
            f"{one['started_ts']:%Y-%m-%d %H:%M}",
            one["partition"] or "the table",
            one["action"],
            _number(one["predicted_gain"]),
            _number(one["actual_gain"]),
            _number(one["seconds"]),
        )
        for one in done[:SHOWN]
    ]
    shown = [f"<section>\n<h2>{escape(examination.facts.name)}</h2>", _table(list(figures), [tuple(figures.values())])]
    shown.append(
        _table(("Finding", "Evidence", "What to do", "Predicted gain"), findings)
        if findings
        else "<p>Nothing to mend.</p>"
    )
    if outcomes:
        heads = ("Mended (UTC)", "Partition", "How", "Predicted gain", "Actual gain", "Seconds")
        shown += ["<h3>Predicted and actual</h3>", _table(heads, outcomes)]
    if totals.files:
        shown.append(_bars(chart, *named_buckets(totals.histogram), brings_plotly=brings_plotly))
    return "\n".join([*shown, "</section>"])


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    lines = "\n".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>\n{lines}</table>"


def _number(figure: object) -> str:
    return f"{figure:,.4g}" if isinstance(figure, int | float) else "–"


def _bars(chart: str, names: Sequence[str], counts: Sequence[int], *, brings_plotly: bool) -> str:
    """Files by size."""
    figure = go.Figure(go.Bar(x=[escape(name) for name in names], y=list(counts)))
    axes = {"xaxis": {"title": "bytes", "type": "category"}, "yaxis": {"title": "files"}}
    figure.update_layout(title="File sizes", height=320, template="simple_white", **axes)
    html: str = figure.to_html(
        full_html=False, include_plotlyjs=brings_plotly, include_mathjax=False, div_id=chart,
        config={"displaylogo": False, "responsive": True},
    )  # fmt: skip
    return html


def keep(folder: Path, day: date, page: str, most: int) -> Path:
    """Write the report of a day, in place of an earlier one of it, and remove all but the newest `most`.

    The file is complete or not there: a browser may have it open. Other files of the folder are left alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"layout-{day.isoformat()}.html"
    write_durably(path, page.encode())
    for old in sorted(folder.glob("layout-????-??-??.html"))[:-most]:
        old.unlink(missing_ok=True)
    return path
