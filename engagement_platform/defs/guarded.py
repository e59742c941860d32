"""Whether the rules that keep streams and tables safe are kept, as an asset check. The rules are `guards.rules`."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from engagement_platform.defs.specs import DATA_TABLE, key_of
from engagement_platform.engine.job import Stores
from engagement_platform.errors import PlatformError
from engagement_platform.guards.rules import Guard, broken, guards
from engagement_platform.settings import Settings

GUARDS_KEPT = "guards_kept"
SAYS = "Nobody but our jobs writes, and tables and streams are as `engagement-platform doctor --guards` wants them."


def guards_kept(settings: Settings, stores: Stores) -> dg.AssetCheckResult:
    """The check as it stands now. Reads logs and stores, no data; a warning where a rule cannot be looked at."""
    try:
        return guards_result(guards(settings, stores))
    except PlatformError as error:
        return _result(False, f"Nobody can tell: {error}", {})


def guards_result(found: Sequence[Guard]) -> dg.AssetCheckResult:
    """Passed when no rule is broken; otherwise says which, by what one sees it, and what to do."""
    wrong = [f"{guard.rule.says} But: {guard.verdict.seen}. {guard.rule.do}" for guard in broken(found)]
    columns = [dg.TableColumn(name) for name in ("rule", "state", "seen")]
    records = [
        dg.TableRecord({"rule": guard.rule.code, "state": guard.verdict.state, "seen": guard.verdict.seen})
        for guard in found
    ]
    each = dg.MetadataValue.table(records, dg.TableSchema(columns))
    return _result(not wrong, " ".join(wrong) or None, {"each": each})


def _result(passed: bool, said: str | None, shown: dict[str, dg.MetadataValue]) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=passed,
        asset_key=key_of(DATA_TABLE),
        check_name=GUARDS_KEPT,
        severity=dg.AssetCheckSeverity.WARN,
        description=said,
        metadata=shown,
    )
