"""Spark's integration of OpenLineage says which tables of the lake it wrote, as docs/operations.md has it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from engagement_platform.lake.jars import JarsUnavailable, resolve_jars
from engagement_platform_tests.docs.pages import ROOT

pytestmark = pytest.mark.slow

_WRITES = """
import sys
from pathlib import Path
from engagement_platform.engine.model import Transaction
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.session import spark_session
from engagement_platform.settings import Settings
from engagement_platform_tests.lake.test_lake import THINGS

settings = Settings()
with spark_session(settings) as spark:
    lake = Lake(spark, settings)
    lake.ensure(THINGS)
    rows = spark.createDataFrame([("o", "1", 1, "a")], THINGS.ddl)
    lake.append(rows, THINGS, Transaction("test/things", 0), rows=1)
"""


def test_each_table_that_is_written_is_the_output_of_an_event(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    [conf] = re.findall(r"```toml\n(\[spark\.conf\]\n.*?)```", page, re.DOTALL)
    [version] = re.findall(r"openlineage-spark_2\.13-([\d.]+)\.jar", page)
    ivy = tmp_path / "ivy.xml"
    ivy.write_text(
        f"""<ivy-module version="2.0"><info organisation="o" module="m" revision="1"/>
        <configurations><conf name="spark"/></configurations><dependencies>
        <dependency org="io.openlineage" name="openlineage-spark_2.13" rev="{version}" conf="spark->master"/>
        </dependencies></ivy-module>"""
    )
    try:
        [jar] = resolve_jars("spark", tmp_path / "cache", ivy_file=ivy)
    except JarsUnavailable as unavailable:
        pytest.skip(str(unavailable))
    home, events = tmp_path / "home", tmp_path / "events.json"
    home.mkdir()
    text = conf.replace("/var/log/lineage.json", str(events))
    assert text != conf
    (home / "platform.toml").write_text(f'[spark]\njar_folder = "{jar.parent}"\n\n{text}')
    (home / "run.py").write_text(_WRITES)
    command = [sys.executable, str(home / "run.py")]
    env = {**os.environ, "ENGAGEMENT_PLATFORM_HOME": str(home), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=env, cwd=home, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = [json.loads(line) for line in events.read_text("utf-8").splitlines()]
    written = {output["name"] for event in said if event["eventType"] == "COMPLETE" for output in event["outputs"]}
    assert written == {str(home / "lake" / "test" / "things")}
