"""The base of every error the platform raises on purpose.

Subclasses live beside the code that raises them. Their message says what happened, what was not harmed
and what to do; the command line prints it as its one-line reason.
"""


class PlatformError(Exception):
    """Something a person can understand and act on; printed without a traceback by the command line."""


START_ANEW = (
    "Nothing of the first edition is carried over. Start anew beside it: set ENGAGEMENT_PLATFORM_HOME to an empty "
    "folder, and ENGAGEMENT_PLATFORM_LAKE_URI and ENGAGEMENT_PLATFORM_STORES__URL to other places where they are set; "
    "the jobs then read their topics from the beginning."
)
"""What to do with a lake, or stores, of the first edition."""
