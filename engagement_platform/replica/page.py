"""The replica as one HTML page: counts, freshness, and three pictures. The page loads nothing from anywhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path

import plotly.graph_objects as go

from engagement_platform.consumers.lag import Lag
from engagement_platform.replica.summaries import Conversions, Day, Person, Summary

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 76em; padding: 0 1em; color: #222 }
dl { display: flex; flex-wrap: wrap; gap: .5em 2.5em; margin: 1em 0 } dt { color: #666; font-size: 13px }
dd { margin: 0; font-size: 20px; font-variant-numeric: tabular-nums }
.late { color: #b00020; font-weight: 600 }
.charts > div { min-width: 0; overflow: hidden; margin: 1em 0 }
"""
_LABEL = 48
"""Characters of an id that a picture shows; an id may have 256."""


def page(found: Summary, lag: Lag | None, now: datetime) -> str:
    """The whole page. Names are escaped; plotly.js is in it once, 4.6 MB."""
    pictures = (_days(found.days), _persons(found.persons), _conversions(found.conversions))
    charts = "\n".join(_html(figure, number) for number, figure in enumerate(pictures, 1))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>Engagements as they are now</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        "<h1>Engagements as they are now</h1>\n"
        f"{_figures(found)}\n<p>{_freshness(found, lag, now)}</p>\n"
        f'<div class="charts">\n{charts}\n</div>\n</body>\n</html>\n'
    )


def write_page(path: Path, text: str) -> None:
    """Put the page there; it is complete or not there, since a browser may have the one before open."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _figures(found: Summary) -> str:
    totals = found.totals
    days = "–" if totals.first is None else f"{totals.first} to {totals.last}"
    shown = (
        ("engagements", "Engagements", f"{totals.engagements:,}"),
        ("organizations", "Organizations", f"{totals.organizations:,}"),
        ("persons", "Persons", f"{totals.persons:,}"),
        ("converted", "Converted engagements", f"{totals.converted:,}"),
        ("days", "Days", days),
        ("batch", "Up to batch", found.state.batch or "–"),
    )
    items = "".join(
        f'<div><dt>{escape(name)}</dt><dd id="{key}">{escape(value)}</dd></div>' for key, name, value in shown
    )
    return f"<dl>{items}</dl>"


def _freshness(found: Summary, lag: Lag | None, now: datetime) -> str:
    state = found.state
    text = f"Refreshed {state.refreshed_ts:%Y-%m-%d %H:%M:%S} UTC"
    if state.announced_ts is not None:
        text += f", with all that was announced until {state.announced_ts:%Y-%m-%d %H:%M:%S} UTC"
    if lag is None:
        return escape(f"{text}.")
    if lag.lost:
        return f'{escape(text)}. <span class="late">Changes since then can no longer be read one by one.</span>'
    if not lag.rows:
        return escape(f"{text}. Nothing waited when this page was made, {now:%Y-%m-%d %H:%M:%S} UTC.")
    waiting = f"{lag.rows:,} changes wait, the oldest for {lag.age(now).total_seconds():.0f} s"
    return f'{escape(text)}. <span class="late">{escape(waiting)}.</span>'


def _days(days: Sequence[Day]) -> go.Figure:
    figure = go.Figure()
    for organization in dict.fromkeys(day.organization for day in days):
        mine = [day for day in days if day.organization == organization]
        figure.add_bar(
            name=_label(organization), x=[day.day.isoformat() for day in mine], y=[day.engagements for day in mine]
        )
    figure.update_layout(title="Engagements per organization and day", barmode="stack", height=420, showlegend=True)
    figure.update_xaxes(type="category", categoryorder="category ascending")
    figure.update_yaxes(title="engagements")
    return figure


def _persons(persons: Sequence[Person]) -> go.Figure:
    named = [f"{_label(person.person)}, {_label(person.organization)}" for person in persons]
    figure = go.Figure(
        go.Bar(
            # Numbers as places and names as their text: two ids that look the same when cut short stay two bars.
            y=list(range(len(persons))), x=[person.engagements for person in persons], orientation="h",
            text=[f"{person.engagements:,}, last {person.last}" for person in persons], marker_color="#3366aa",
        )
    )  # fmt: skip
    figure.update_layout(title="Persons with most engagements", height=max(260, 80 + 24 * len(persons)))
    figure.update_yaxes(autorange="reversed", tickvals=list(range(len(persons))), ticktext=named, automargin=True)
    figure.update_xaxes(title="engagements")
    return figure


def _conversions(found: Sequence[Conversions]) -> go.Figure:
    places = list(range(len(found)))
    figure = go.Figure()
    figure.add_bar(name="engagements moved", x=places, y=[one.engagements for one in found], marker_color="#e07b00")
    figure.add_bar(name="ids converted", x=places, y=[one.ids for one in found], marker_color="#3366aa")
    figure.update_layout(title="Conversions: what another person has now", barmode="group", height=380)
    figure.update_xaxes(tickvals=places, ticktext=[_label(one.organization) for one in found], automargin=True)
    return figure


def _label(name: str) -> str:
    """Plotly takes some tags in labels for what they are."""
    return escape(name if len(name) <= _LABEL else f"{name[:_LABEL]}…")


def _html(figure: go.Figure, number: int) -> str:
    figure.update_layout(template="simple_white", margin={"l": 60, "r": 10, "t": 50, "b": 60})
    html: str = figure.to_html(
        full_html=False,
        default_width="100%",
        include_plotlyjs=number == 1,
        include_mathjax=False,
        div_id=f"chart-{number}",
        config={"displaylogo": False, "responsive": True},
    )
    return html
