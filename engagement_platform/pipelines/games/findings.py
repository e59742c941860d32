"""Findings about games as alerts, and their recoveries.

What is wrong is `detect`'s to say; whom to tell is `alerting`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from engagement_platform.alerting.alerts import Alerts
from engagement_platform.alerting.model import Alert, Severity
from engagement_platform.pipelines.games.detection import SILENCE, Finding

SOURCE = "live-ops"
FIGURES = "figures"


def key_of(finding: Finding) -> str:
    """The alert that a finding belongs to: one a game for its silence, one for all its figures.

    What players leave, they leave in all figures at once; one message says so.
    """
    return f"{SOURCE}/{finding.game}/{SILENCE if finding.what == SILENCE else FIGURES}"


def standing(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Findings that are not over, by the alert they belong to."""
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.over_at is None:
            found.setdefault(key_of(finding), []).append(finding)
    return found


def alert_of(key: str, findings: Sequence[Finding]) -> Alert:
    """The alert for what stands about one key; at least one finding."""
    first = min(findings, key=lambda finding: finding.told_at)
    if first.what == SILENCE:
        title = f"{first.game} is silent"
        body = (
            "No event came for longer than this game is ever quiet at this hour. Look at its servers and at ingestion."
        )
    else:
        moved = ", ".join(f"{one.what} {one.ratio - 1:+.0%}" for one in findings)
        after = f" after {first.change}" if first.change else ""
        title = f"{first.game}: {moved}{after}"
        body = f"Against what is expected of this hour: {moved}."
        body += f" It began after the change {first.change}; consider taking it back." if first.change else ""
    labels: Mapping[str, str] = {"game": first.game, **({"change": first.change} if first.change else {})}
    return Alert(key, Severity.ERROR, title, body, SOURCE, first.told_at - timedelta(minutes=1), labels)


def tell(alerts: Alerts, games: Iterable[str], findings: Iterable[Finding]) -> None:
    """Raise what stands and take back what is over, for games that were judged. Never raises, sends nothing itself."""
    now_wrong = standing(findings)
    for key, found in sorted(now_wrong.items()):
        alerts.raised(alert_of(key, found))
    for game in games:
        for kind, words in ((SILENCE, "Events come again."), (FIGURES, "Its figures are back at what is expected.")):
            if (key := f"{SOURCE}/{game}/{kind}") not in now_wrong:
                alerts.recovered(key, words)
