"""The Dagster processes of one machine: code server, webserver, daemon.

What Dagster runs is `defs/`; this module only starts its programs and never imports it.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

import engagement_platform
from engagement_platform.errors import PlatformError
from engagement_platform.local.ports import LOCALHOST, answers, answers_http
from engagement_platform.local.process import Child
from engagement_platform.pipelines.declarations.declared import declarations
from engagement_platform.settings import ENV_PREFIX, Settings

CODE_SERVER, WEBSERVER, DAEMON = "code-server", "webserver", "daemon"
LOCATION = "engagement_platform"
PORTS = {"ui_port": "Dagster UI", "code_port": "Dagster code server"}
"""Setting of `embedded` to what listens there."""
STAGE = 1
SHARED_DRAIN = f"{ENV_PREFIX}DAGSTER__SHARED_DRAIN"
RUNS_AT_ONCE = 4
"""Where one run drains for several pipelines: that one, the one of games, and two for moves, checks and maintenance.
What is declared beside them has runs of its own, one each."""
AFTER_SPARK = ("nice", "-n", "5")
"""Runs wait for Spark more than they work; where cores are few, those that start would keep it waiting."""


def ui_address(settings: Settings) -> str:
    return f"http://{LOCALHOST}:{settings.embedded.ui_port}"


def dagster_children(settings: Settings, variables: Mapping[str, str], after: Sequence[str]) -> list[Child]:
    """The three programs. One code server serves both others, so definitions load once. Writes <home>/dagster.

    Raises DeclarationRefused.

    after: services without which the daemon's sensors would only fail.
    """
    home = settings.home / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    declared = declarations(settings)
    more = len(declared.streams) + len(declared.entities) + len(declared.feeds)
    config = _instance_config(more, shared=variables.get(SHARED_DRAIN) == "true")
    (home / "dagster.yaml").write_text(f"# Written by `engagement-platform up`; edits are lost.\n{config}")
    workspace = home / "workspace.yaml"
    port = settings.embedded.code_port
    server = {"host": LOCALHOST, "port": port, "location_name": LOCATION}
    workspace.write_text(json.dumps({"load_from": [{"grpc_server": server}]}))  # JSON is YAML
    env = {**variables, "DAGSTER_HOME": str(home)}
    code = ("-m", "engagement_platform.defs.code_server", "--host", LOCALHOST, "--port", str(port))
    ui = ("--host", LOCALHOST, "--port", str(settings.embedded.ui_port), "--workspace", str(workspace))
    daemon = ("--workspace", str(workspace), "--log-level", "warning")
    return [
        Child(
            name=CODE_SERVER,
            command=[*AFTER_SPARK, sys.executable, *code],
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
            command=[*AFTER_SPARK, str(Path(sysconfig.get_path("scripts")) / "dagster-daemon"), "run", *daemon],
            ready=lambda: True,
            env=env,
            after=(CODE_SERVER, *after),
            stage=STAGE,
        ),
    ]


def _instance_config(declared: int, *, shared: bool) -> str:
    package = Path(engagement_platform.__file__).parent
    for folder in (package.parent, package):
        if (folder / "dagster.yaml").exists():
            config = yaml.safe_load((folder / "dagster.yaml").read_text())
            runs = config["concurrency"]["runs"]
            runs["max_concurrent_runs"] = declared + (RUNS_AT_ONCE if shared else runs["max_concurrent_runs"])
            return str(yaml.safe_dump(config, sort_keys=False))
    raise PlatformError(
        "Found no dagster.yaml for the Dagster instance. Run from a checkout, or reinstall the package."
    )
