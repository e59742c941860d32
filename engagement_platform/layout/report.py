"""What the doctor found as one HTML page: figures, findings and histograms; and a folder with the newest of them.

The page loads nothing from anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from html import escape
from pathlib import Path

import plotly.graph_objects as go

from engagement_platform.layout.doctor import Examination
from engagement_platform.layout.finding import Finding
from engagement_platform.layout.history import Outcome
from engagement_platform.layout.remedies import readable
from engagement_platform.layout.statistics import doubling_buckets, named_buckets

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0; width: 100% }
th, td { border-bottom: 1px solid #ddd; padding: .4em .6em; text-align: left; vertical-align: top }
.figure { text-align: right; font-variant-numeric: tabular-nums }
code { font-size: 13px; overflow-wrap: anywhere }
td:first-child code { overflow-wrap: normal; white-space: nowrap }
.error { color: #b00020; font-weight: 600 } .warning { color: #8a5a00; font-weight: 600 } .info { color: #555 }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(20em, 1fr)) }
.charts > div { min-width: 0; overflow: hidden }
"""


Done = Mapping[str, Sequence[Outcome]]
"""What was mended lately in each table, by its name, newest first."""

SHOWN = 20
"""Slices of a table whose outcome is shown."""


def page(examinations: Sequence[Examination], done: Done) -> str:
    """The whole page. Names of tables and partitions are escaped; plotly.js is in it once, 4.6 MB."""
    charts = _Charts()
    sections = "\n".join(_section(one, done.get(one.target.name, ()), charts) for one in examinations)
    found = sum(len(examination.findings) for examination in examinations)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Layout of tables</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>Layout of {len(examinations)} "
        f"{'table' if len(examinations) == 1 else 'tables'}: {found} {'finding' if found == 1 else 'findings'}</h1>\n"
        f"{sections}\n</body>\n</html>\n"
    )


class _Charts:
    """Figures as HTML; the first one brings plotly.js along."""

    def __init__(self) -> None:
        self._made = 0

    def bars(self, title: str, x_title: str, y_title: str, names: Sequence[str], counts: Sequence[int]) -> str:
        """One bar chart."""
        figure = go.Figure(go.Bar(x=[escape(name) for name in names], y=list(counts), marker_color="#3366aa"))
        figure.update_layout(
            title=title,
            height=320,
            margin={"l": 50, "r": 10, "t": 50, "b": 60},
            xaxis={"title": x_title, "type": "category"},
            yaxis={"title": y_title},
            bargap=0.05,
            template="simple_white",
        )
        self._made += 1
        html: str = figure.to_html(
            full_html=False,
            default_width="100%",
            include_plotlyjs=self._made == 1,
            include_mathjax=False,
            div_id=f"chart-{self._made}",
            config={"displaylogo": False, "responsive": True},
        )
        return html


def _section(examination: Examination, done: Sequence[Outcome], charts: _Charts) -> str:
    statistics = examination.statistics
    totals = statistics.totals
    share = f"{100 * totals.small_files / totals.files:.0f} %" if totals.files else "–"
    figures = [
        ("Version", f"{statistics.version:,}"),
        ("Files", f"{totals.files:,}"),
        ("Bytes", readable(totals.bytes)),
        ("Rows", f"{totals.rows:,}"),
        ("Partitions", f"{totals.partitions:,}"),
        ("Small files", share),
        ("Median file", readable(totals.median_file_bytes)),
        ("Clustered by", ", ".join(statistics.clustering) or "–"),
    ]
    heads = "".join(f'<th class="figure">{escape(name)}</th>' for name, _ in figures)
    cells = "".join(f'<td class="figure">{escape(value)}</td>' for _, value in figures)
    return (
        f"<section>\n<h2>{escape(statistics.table)}</h2>\n<table><tr>{heads}</tr><tr>{cells}</tr></table>\n"
        f"{_findings(examination.findings)}\n{_not_looked_at(examination)}\n{_outcomes(done)}\n"
        f'<div class="charts">{_charts(examination, charts) if totals.files else ""}</div>\n</section>'
    )


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return "<p>Nothing to mend.</p>"
    rows = "\n".join(
        f'<tr><td class="{finding.severity}">{finding.severity}<br><code>{escape(finding.code)}</code></td>'
        f"<td>{escape(finding.what)}<br><code>{escape(_evidence(finding))}</code></td>"
        f"<td>{escape(finding.remedy)}</td><td>{escape(str(finding.gain))}</td></tr>"
        for finding in findings
    )
    return (
        f"<table><tr><th>Finding</th><th>Evidence</th><th>What to do</th><th>Predicted gain</th></tr>\n{rows}</table>"
    )


def _not_looked_at(examination: Examination) -> str:
    return "\n".join(
        f"<p><code>{escape(code)}</code> not looked at: {escape(why)}</p>"
        for code, why in examination.not_looked_at.items()
    )


def _evidence(finding: Finding) -> str:
    return ", ".join(f"{name}={value}" for name, value in finding.evidence.items())


_OUTCOME = (
    ("Files", "", ("files_before", "predicted_files_after", "files_after")),
    ("Bytes rewritten", "bytes", ("predicted_bytes_rewritten", "bytes_removed")),
    (
        "Files a week opens",
        "",
        ("predicted_read_files_before", "predicted_read_files_after", "read_files_after"),
    ),
    ("Seconds", "s", ("predicted_seconds", "seconds")),
    ("Bytes freed", "bytes", ("predicted_bytes_freed", "bytes_freed")),
)
"""Figures side by side, in which unit, from which columns of `layout/history`."""


def _outcomes(done: Sequence[Outcome]) -> str:
    """What was predicted beside what came of it; nothing where nothing was mended."""
    if not done:
        return ""
    groups = "".join(f'<th class="figure" colspan="{len(names)}">{title}</th>' for title, _, names in _OUTCOME)
    heads = "".join(
        f'<th class="figure">{head}</th>'
        for _, _, names in _OUTCOME
        for head in ("before", "predicted", "actual")[-len(names) :]
    )
    rows = "\n".join(map(_outcome, done[:SHOWN]))
    return (
        "<h3>Predicted and actual</h3>\n"
        f'<table><tr><th rowspan="2">Mended (UTC)</th><th rowspan="2">Partition</th><th rowspan="2">How</th>{groups}'
        f"</tr><tr>{heads}</tr>\n{rows}</table>"
    )


def _outcome(one: Outcome) -> str:
    figures = "".join(
        f'<td class="figure">{_figure(one[name], unit)}</td>' for _, unit, names in _OUTCOME for name in names
    )
    return (
        f"<tr><td>{one['started_ts']:%Y-%m-%d %H:%M}</td><td>{escape(str(one['partition'] or 'the table'))}</td>"
        f"<td>{escape(str(one['action']))}</td>{figures}</tr>"
    )


def _figure(value: object, unit: str) -> str:
    if not isinstance(value, int | float):
        return "–"
    if unit == "bytes":
        return readable(int(value))
    return f"{value:.2f}" if unit == "s" else f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def _charts(examination: Examination, charts: _Charts) -> str:
    statistics = examination.statistics
    made = [charts.bars("File sizes", "bytes", "files", *named_buckets(statistics.totals.histogram))]
    for title, column in (("Files per partition", "files"), ("Overlap of ranges", "depth")):
        figures = statistics.partitions.column(column).drop_null()
        if len(figures):
            labels, counts = doubling_buckets(figures)
            x_title = "files" if column == "files" else f"most files that hold one {statistics.clustering[0]}"
            made.append(charts.bars(title, escape(x_title), "partitions", labels, counts))
    return "\n".join(made)


def keep(folder: Path, day: date, page: str, most: int) -> Path:
    """Write the report of a day, in place of an earlier one of it, and remove all but the newest `most`.

    The file is complete or not there: a browser may have it open. Other files of the folder are left alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"layout-{day.isoformat()}.html"
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(page, encoding="utf-8")
    unfinished.replace(path)
    for old in sorted(folder.glob("layout-????-??-??.html"))[:-most]:
        old.unlink(missing_ok=True)
    return path
