"""The code server of a deployment, and of `up`. It first marks the runs as ended that died with the one before it.

Runs are processes beside the code server, and Dagster's default launcher does not look whether they live. Until
`run_monitoring.max_runtime_seconds`, two hours, they would hold their pools, and no sensor would launch the next one.
"""

from __future__ import annotations

import argparse
import os
import sys

import dagster as dg

LOCATION = "engagement_platform"
"""Name of the code location, as in `workspace.yaml`."""
# Dagster's own tags of runs; it offers no other filter for a location, nor for what launched one.
SENSOR = "dagster/sensor_name"
REPOSITORY = ".dagster/repository"
OURS = {REPOSITORY: f"__repository__@{LOCATION}"}
IN_PROGRESS = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


def end_abandoned_runs(instance: dg.DagsterInstance) -> int:
    """Mark the runs of this location that are in progress as ended; queued ones stay queued. Returns how many.

    Those of sensors as canceled, since these launch new ones; all others as failed, so that Dagster launches what a
    schedule launched once more, and a person hears of what nobody else does. Call it while no code server of the
    location runs. Does nothing with a launcher that starts runs elsewhere.
    """
    if not isinstance(instance.run_launcher, dg.DefaultRunLauncher):
        return 0
    runs = instance.get_runs(dg.RunsFilter(statuses=IN_PROGRESS, tags=OURS))
    for run in runs:
        by_sensor = SENSOR in run.tags or run.status is dg.DagsterRunStatus.CANCELING
        ended = instance.report_run_canceled if by_sensor else instance.report_run_failed
        ended(run, "The code server ended, and this run with it.")
    return len(runs)


def main() -> None:
    """End what the former code server left in progress, then become the code server of this location."""
    parser = argparse.ArgumentParser(prog="python -m engagement_platform.defs.code_server", description=main.__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="Address to listen on, by default 127.0.0.1 only.")
    parser.add_argument("--port", type=int, default=4266, help="Port to listen on, by default 4266.")
    given = parser.parse_args()
    with dg.DagsterInstance.get() as instance:
        if count := end_abandoned_runs(instance):
            print(
                f"Runs that ended with the code server: {count}. Sensors launch theirs again; others count as failed.",
                flush=True,
            )
    module = ("--module-name", "engagement_platform.definitions", "--location-name", LOCATION)
    address = ("--host", given.host, "--port", str(given.port))
    os.execv(sys.executable, [sys.executable, "-m", "dagster", "api", "grpc", *module, *address])  # noqa: S606


if __name__ == "__main__":
    main()
