"""The Dagster processes of one machine: code server, webserver, daemon, and what a stop left unfinished.

What Dagster runs is `defs/`; this module only starts its programs and never imports it.
"""

from __future__ import annotations

import json
import sys
import sysconfig
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import engagement_platform
from engagement_platform.errors import PlatformError
from engagement_platform.local.ports import LOCALHOST, answers, answers_http
from engagement_platform.local.process import Child
from engagement_platform.settings import ENV_PREFIX, Settings

CODE_SERVER, WEBSERVER, DAEMON = "code-server", "webserver", "daemon"
LOCATION = "engagement_platform"
PORTS = {"ui_port": "Dagster UI", "code_port": "Dagster code server"}
"""Setting of `embedded` to what listens there."""
STAGE = 1
SHARED_DRAIN = f"{ENV_PREFIX}DAGSTER__SHARED_DRAIN"
RUNS_AT_ONCE = 4
"""Where one run drains for several pipelines: that one, the one of games, and two for moves, checks and maintenance."""
AFTER_SPARK = ("nice", "-n", "5")
"""Runs wait for Spark more than they work; where cores are few, those that start would keep it waiting."""

_IN_PROGRESS = """query { runsOrError(filter: {statuses: [STARTING, STARTED, CANCELING]})
  { ... on Runs { results { runId updateTime } } } }"""
_CANCEL = """mutation($ids: [String!]!) { terminateRuns(runIds: $ids, terminatePolicy: MARK_AS_CANCELED_IMMEDIATELY)
  { __typename } }"""


def ui_address(settings: Settings) -> str:
    """Where the Dagster UI is."""
    return f"http://{LOCALHOST}:{settings.embedded.ui_port}"


def dagster_children(settings: Settings, variables: Mapping[str, str], after: Sequence[str]) -> list[Child]:
    """The three programs. One code server serves both others, so definitions load once. Writes <home>/dagster.

    after: services without which the daemon's sensors would only fail.
    """
    home = settings.home / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    config = _instance_config(shared=variables.get(SHARED_DRAIN) == "true")
    (home / "dagster.yaml").write_text(f"# Written by `engagement-platform up`; edits are lost.\n{config}")
    workspace = home / "workspace.yaml"
    port = settings.embedded.code_port
    server = {"host": LOCALHOST, "port": port, "location_name": LOCATION}
    workspace.write_text(json.dumps({"load_from": [{"grpc_server": server}]}))  # JSON is YAML
    env = {**variables, "DAGSTER_HOME": str(home)}
    scripts = Path(sysconfig.get_path("scripts"))
    code = ("api", "grpc", "--module-name", "engagement_platform.definitions", "--location-name", LOCATION)
    ui = ("--host", LOCALHOST, "--port", str(settings.embedded.ui_port), "--workspace", str(workspace))
    daemon = ("--workspace", str(workspace), "--log-level", "warning")
    return [
        Child(
            name=CODE_SERVER,
            command=[*AFTER_SPARK, str(scripts / "dagster"), *code, "--host", LOCALHOST, "--port", str(port)],
            ready=lambda: answers(port),
            env=env,
            stage=STAGE,
        ),
        Child(
            name=WEBSERVER,
            command=[sys.executable, "-m", "engagement_platform.local.webserver", *ui],
            ready=lambda: answers_http(f"{ui_address(settings)}/server_info"),
            env=env,
            # Asked before the code server answers, it would show an error and ask again only after 10 s.
            after=(CODE_SERVER,),
            stage=STAGE,
        ),
        Child(
            name=DAEMON,
            command=[*AFTER_SPARK, str(scripts / "dagster-daemon"), "run", *daemon],
            ready=lambda: True,
            env=env,
            after=(CODE_SERVER, *after),
            stage=STAGE,
        ),
    ]


def cancel_abandoned_runs(settings: Settings, before: float) -> int:
    """Mark runs as canceled that were in progress when their code server ended at or before `before` (Unix time).

    Their processes are gone with it, but nobody was left to write that down, and a sensor that launches a run only
    while none is in progress would wait for ever. Queued runs stay queued. Returns how many there were.
    """
    found = _ask(settings, _IN_PROGRESS, {})["runsOrError"]
    ids = [run["runId"] for run in found.get("results", []) if (run["updateTime"] or 0) < before]
    if ids:
        _ask(settings, _CANCEL, {"ids": ids})
    return len(ids)


def _ask(settings: Settings, query: str, variables: Mapping[str, object]) -> dict[str, Any]:
    request = urllib.request.Request(  # noqa: S310 - the address is ours and on this machine
        f"{ui_address(settings)}/graphql",
        data=json.dumps({"query": query, "variables": variables}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        return dict(json.load(answer)["data"])


def _instance_config(*, shared: bool) -> str:
    package = Path(engagement_platform.__file__).parent
    for folder in (package.parent, package):
        if (folder / "dagster.yaml").exists():
            config = yaml.safe_load((folder / "dagster.yaml").read_text())
            if shared:
                config["concurrency"]["runs"]["max_concurrent_runs"] = RUNS_AT_ONCE
            return str(yaml.safe_dump(config, sort_keys=False))
    raise PlatformError(
        "Found no dagster.yaml for the Dagster instance. Run from a checkout, or reinstall the package."
    )
