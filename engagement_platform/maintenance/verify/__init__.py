"""Recomputes what the tables should hold, from messages and from the logs of requests, and compares. Changes nothing.

Comparing with the topic is `messages`; identities, contents and names are `identity`, by the rules that `recomputed`
runs; when a lake that is written to meanwhile can be compared at all is `snapshot`.
"""

from engagement_platform.maintenance.verify.finding import Finding
from engagement_platform.maintenance.verify.identity import identity_findings
from engagement_platform.maintenance.verify.messages import ledger, verify

__all__ = ["Finding", "identity_findings", "ledger", "verify"]
