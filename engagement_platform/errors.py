"""The base of every error the platform raises on purpose.

Subclasses live beside the code that raises them. Their message says what happened, what was not harmed
and what to do; the command line prints it as its one-line reason.
"""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Literal

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """A text from data as one line in which a terminal finds nothing to obey: controls are escapes, such as `\\x1b`."""
    return _CONTROLS.sub(lambda found: ascii(found.group())[1:-1], text)


class PlatformError(Exception):
    """Something a person can understand and act on; printed without a traceback by the command line."""


class Damaged(PlatformError):
    """Something that was stored does not read as it was written."""


def first_line(error: Exception) -> str:
    """What an error says, at most 300 characters, without colours and the lines after the first."""
    lines = [line.strip() for line in re.sub(r"\x1b\[\d+m", "", str(error)).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300].rstrip(". ")


START_ANEW = (
    "Nothing of the first edition is carried over. Start anew beside it: set ENGAGEMENT_PLATFORM_HOME to an empty "
    "folder, and ENGAGEMENT_PLATFORM_LAKE_URI and ENGAGEMENT_PLATFORM_STORES__URL to other places where they are set; "
    "the jobs then read their topics from the beginning."
)
"""What to do with a lake, or stores, of the first edition."""

Extra = Literal["games", "liveops", "postgres", "server"]

_SERVER = ("fastapi", "uvicorn")
MODULES: Mapping[Extra, tuple[str, ...]] = {
    # Without `liveops`: simulated games run also where nobody judges them.
    "games": ("moto", "flask", *_SERVER),
    "liveops": ("scipy", "statsmodels"),
    "postgres": ("psycopg2",),
    "server": _SERVER,
}
"""What has to be there for the part of an extra to run, as it is imported; what is in which extra: pyproject.toml."""


class ExtraMissing(PlatformError):
    """A part of the platform was asked for whose packages are not installed."""

    def __init__(self, what: str, extra: Extra, absent: tuple[str, ...]) -> None:
        super().__init__(
            f"{what} needs {', '.join(absent)}, which the extra `{extra}` brings and this installation lacks. Nothing "
            f"was changed. Install it: pip install 'engagement-platform[{extra}]'"
        )


def missing(extra: Extra, what: str) -> ExtraMissing | None:
    """What to say where packages of an extra are not installed; None where all are. what: a sentence's subject.

    Imports none of them: some take a second.
    """
    absent = tuple(module for module in MODULES[extra] if find_spec(module) is None)
    return ExtraMissing(what, extra, absent) if absent else None


def require(extra: Extra, what: str) -> None:
    """Raise ExtraMissing where packages of an extra are not installed, before anything else is done."""
    if error := missing(extra, what):
        raise error
