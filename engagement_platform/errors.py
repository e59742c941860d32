"""The base of every error the platform raises on purpose.

Subclasses live beside the code that raises them. Their message says what happened, what was not harmed
and what to do; the command line prints it as its one-line reason.
"""


class PlatformError(Exception):
    """Something a person can understand and act on; printed without a traceback by the command line."""
