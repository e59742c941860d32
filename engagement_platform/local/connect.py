"""The command that runs a Spark Connect server for one machine. Its configuration is `lake/session`'s.

Run as a program it becomes the server, for a container of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from engagement_platform.errors import PlatformError
from engagement_platform.lake.jars import find_java, pyspark_home, spark_jars
from engagement_platform.local.connect_server import CONF
from engagement_platform.local.ports import LOCALHOST, answers
from engagement_platform.local.process import Child
from engagement_platform.settings import Settings, refusal

NAME = "spark-connect"
_PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"
# Each batch brings plans and classes of its own, most of which run a few times: on few cores, compiling them well and
# collecting beside the program take the processor from the work.
FEW_CORES = 4
_FOR_FEW_CORES = (
    "-XX:TieredStopAtLevel=1",
    # With the 48 MB that go with that, the cache of compiled code is full after a minute, and filled anew for ever.
    "-XX:ReservedCodeCacheSize=400m",
    # Each time that classes outgrow what was set aside for them, all of the heap is collected; they end at 200 MB.
    "-XX:MetaspaceSize=400m",
    "-XX:+UseSerialGC",
    # Nearly all that a batch allocates is garbage at its end: with half of the heap for it instead of a third,
    # collecting takes half the time, 0.2 of 5 CPU seconds (2 cores, 1 GB).
    "-XX:NewRatio=1",
)
GC_LOG = "gc.log"
"""In the folder of the server: each collection of its heap, the newest MB of them."""
_LOG4J = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
logger.scheduler.name = org.apache.spark.scheduler.DAGScheduler
logger.scheduler.level = warn
logger.scheduler.filter.gone.type = RegexFilter
logger.scheduler.filter.gone.regex = Failed to update accumulator.*
logger.scheduler.filter.gone.onMatch = deny
logger.scheduler.filter.gone.onMismatch = neutral
logger.accumulators.name = org.apache.spark.util.AccumulatorContext
logger.accumulators.level = error
"""
"""A frame that is kept is computed after its plan is gone, and with it the plan's figures: an error with a stack trace
for each task and figure, which no one can mend and nothing depends on."""


def connect_child(
    settings: Settings, work_dir: Path, env: Mapping[str, str] = MappingProxyType({}), *, host: str = LOCALHOST
) -> Child:
    """The server as a process to supervise; `work_dir` takes its scratch files. Raises what resolving jars raises.

    host: address to listen on. All who reach the port run what they want: Connect has no users and no passwords.
    spark-submit is a shell script that becomes the JVM (exec twice), so the child's process is the server itself; the
    JVM starts `connect_server` as its driver.
    """
    from engagement_platform.lake.session import own_jar_conf, plugin_conf, server_conf, submit_options

    work_dir.mkdir(parents=True, exist_ok=True)
    # A server that was killed leaves its blocks and artifacts behind; nobody else uses this folder.
    shutil.rmtree(work_dir / "local", ignore_errors=True)
    log4j = work_dir / "log4j2.properties"
    log4j.write_text(_LOG4J)
    jars = spark_jars(settings)
    conf = {
        "spark.local.dir": str(work_dir / "local"),
        "spark.sql.warehouse.dir": str(work_dir / "warehouse"),
        # A session keeps its last 16 plans otherwise, and with them the state of tables as it then was. After an hour
        # of all pipelines the heap was full of these, and a batch took four times as long. It takes no longer without
        # (5.6 CPU seconds, 6.4 with them).
        "spark.connect.session.planCache.maxSize": "0",
        "spark.python.daemon.module": "engagement_platform.local.python_daemon",
        **own_jar_conf(jars),
        **server_conf(settings),
        "spark.connect.grpc.binding.address": host,
        "spark.connect.grpc.binding.port": str(settings.embedded.connect_port),
    }
    conf |= plugin_conf(jars, conf)
    conf["spark.plugins"] = ",".join(filter(None, (conf.get("spark.plugins"), _PLUGIN)))
    # An application's own options come last on the JVM's command line, so theirs win where both name one.
    own = conf.pop("spark.driver.extraJavaOptions", "")
    few = _FOR_FEW_CORES if (os.cpu_count() or 1) <= FEW_CORES else ()
    # In quotes, which Spark takes off: a path may have blanks.
    log = f'"-Xlog:gc:file={work_dir / GC_LOG}:uptime:filecount=1,filesize=1M"'
    logging = f'"-Dlog4j2.configurationFile={log4j}"'
    conf["spark.driver.extraJavaOptions"] = " ".join((logging, log, *few, own)).strip()
    home = pyspark_home()
    return Child(
        name=NAME,
        command=[
            *(str(home / "bin" / "spark-submit"), "--master", settings.spark.master),
            *("--jars", ",".join(map(str, jars))),
            *submit_options(conf),
            *("--name", NAME, str(Path(__file__).with_name("connect_server.py"))),
        ],
        env={
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(find_java().resolve().parent.parent),
            # A Connect server asks only the environment which Python its workers are, and would take any python3.
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            # Spark binds what no conf names to the host's address otherwise.
            "SPARK_LOCAL_IP": LOCALHOST,
            # Clients' settings; with the first of them spark-submit refuses to start a server.
            "SPARK_REMOTE": None,
            "SPARK_CONNECT_MODE_ENABLED": None,
            # Session windows and file names use it; the platform is UTC everywhere.
            "TZ": "UTC",
            # By it Java reads the paths that it is given.
            "LC_ALL": "C.UTF-8",
            CONF: json.dumps(conf),
            **env,
        },
        ready=lambda: answers(settings.embedded.connect_port),
    )


def main() -> None:
    """Become the server of the settings. Exit status: that of the server, or 1 with the reason."""
    parser = argparse.ArgumentParser(prog="python -m engagement_platform.local.connect", description=main.__doc__)
    parser.add_argument("--host", default=LOCALHOST, help="Address to listen on, by default 127.0.0.1 only.")
    host = parser.parse_args().host
    # As the command line does: what is written into the home folder is for its owner only.
    os.umask(0o077)
    try:
        settings = Settings()
        child = connect_child(settings, settings.home.expanduser().absolute() / "spark", host=host)
    except PlatformError as error:
        sys.exit(str(error))
    except ValueError as error:
        if (reason := refusal(error)) is None:
            raise
        sys.exit(reason)
    variables: dict[str, str | None] = {**os.environ, **child.env}
    command = [*child.command]
    os.execvpe(command[0], command, {key: value for key, value in variables.items() if value is not None})  # noqa: S606


if __name__ == "__main__":
    main()
