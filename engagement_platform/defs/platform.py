"""The resource that runs are given: settings, stores and Spark, all opened while a run goes on and never before."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import dagster as dg

from engagement_platform.engine.job import Callbacks, Stores
from engagement_platform.pipelines.jobs import open_stores, parts_of
from engagement_platform.pipelines.parts import Parts
from engagement_platform.settings import Settings

if TYPE_CHECKING:
    from dagster_pyspark import LazyPySparkResource
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Opened:
    """What one run works with."""

    settings: Settings
    stores: Stores
    spark: SparkSession

    def parts(self, callbacks: Callbacks) -> Parts:
        """What its jobs are built with."""
        return parts_of(self.spark, self.settings, self.stores, callbacks)


class Platform(dg.ConfigurableResource[None]):
    """Everything a run needs of the platform. A field that is set wins over the setting of its name: by that, two
    platforms have a place in one code location. `dg.EnvVar` is taken; everything else is `settings`."""

    home: str | None = None
    lake_uri: str | None = None
    kafka_bootstrap_servers: str | None = None
    spark_remote: str | None = None
    stores_url: str | None = None

    def settings(self) -> Settings:
        """The settings as they are now, in this process."""
        return Settings(
            **_given(
                home=self.home,
                lake_uri=self.lake_uri,
                kafka=_given(bootstrap_servers=self.kafka_bootstrap_servers),
                spark=_given(remote=self.spark_remote),
                stores=_given(url=self.stores_url),
            ),
        )

    @contextmanager
    def open(self, app_name: str) -> Iterator[Opened]:
        """Settings, stores and a Spark session for one run.

        Raises SparkUnavailable, StoresUnavailable, and what resolving jars and reading settings raises.
        """
        settings = self.settings()
        stores = open_stores(settings)
        with open_spark(settings, app_name) as spark:
            yield Opened(settings, stores, spark)


def _given(**values: Any) -> dict[str, Any]:
    """Those that are set."""
    return {name: value for name, value in values.items() if value}


@cache
def bound_platform() -> Platform:
    """The one that definitions bind: Dagster merges definitions only where they bind the same object."""
    return Platform()


@contextmanager
def open_spark(settings: Settings, app_name: str) -> Iterator[SparkSession]:
    """A client session where `spark.remote` is set, else Spark in this process through dagster-pyspark.

    A session that this process runs already is used and left running: there is one driver to a process, and it is
    its starter's to stop.
    """
    from engagement_platform.lake.session import lake_lease, spark_session

    if settings.spark.remote is not None:
        with spark_session(settings, app_name) as spark:
            yield spark
        return
    from pyspark.sql import SparkSession as Classic

    # The driver that is started here is stopped before its lease on the lake is given back.
    with ExitStack() as lease, ExitStack() as opened:
        running = Classic.getActiveSession()
        spark = running or _classic_spark(settings, app_name).spark_session
        if running is None:
            opened.callback(spark.stop)
            spark.sparkContext.setLogLevel("ERROR")
        lease.enter_context(lake_lease(settings, spark, ends=running is None))
        yield spark


def _classic_spark(settings: Settings, app_name: str) -> LazyPySparkResource:
    """Spark of this process, not started yet. Raises what resolving jars raises."""
    from dagster_pyspark import LazyPySparkResource

    from engagement_platform.lake.jars import find_java, spark_jars
    from engagement_platform.lake.session import classic_conf, start_jvm

    class OfPlatform(LazyPySparkResource):
        """One whose configuration is not on a command line."""

        @property
        def spark_session(self) -> Any:
            start_jvm(self.spark_config)
            return super().spark_session

        @property
        def spark_context(self) -> Any:
            return self.spark_session.sparkContext

    find_java()
    # Workers run this Python, which has the packages; without it they take the first python3 on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = classic_conf(settings, spark_jars(settings))
    return OfPlatform(spark_config={"spark.app.name": app_name, **conf})


@dg.resource(
    description="dagster-pyspark's resource with the settings and jars of the platform: Spark in the run's own "
    "process, started by the first use of `spark_session`. For assets of yours that read the lake."
)
def pyspark(_: dg.InitResourceContext) -> LazyPySparkResource:
    """Classic Spark for assets beside the platform's. Raises what resolving jars raises."""
    return _classic_spark(bound_platform().settings(), "engagement-platform")
