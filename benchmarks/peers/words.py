"""Words that stand for null, for formats whose merging of columns takes a null for "nothing was said".

There a deletion is not the end of a row: one that comes back with few words would get its old ones again (Hudi 1.2.0
with PartialUpdateAvroPayload), or deletions are refused (pypaimon 2.1.0). So a deletion says such a word in every
column, and readers take it for null. Nothing has to be looked up in writing. How a format says it is in its module.
"""

from __future__ import annotations

from datetime import date

GONE = "gone"
"""Column that is true of a row that readers do not see."""

# Words that no record has; the day is one that no calendar disagrees about.
NO_TEXT, NO_NUMBER, NO_DAY = "\0", -(2**63), date(9999, 12, 31)
