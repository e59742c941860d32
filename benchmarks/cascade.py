"""How many requests a second are resolved?  python -m benchmarks.cascade --requests 1000000 --rounds 3

Data: seeded; three of ten requests in chains of 2 to 20 hops, equally many of each length, the others alone; spread
evenly over the organizations, in no order, written to Parquet before anything is timed. A round reads that, resolves,
and throws the result away. The first round of each engine is cold (code not compiled, classes not loaded), the others
are warm. Prints requests/s; writes cascade.csv. Fails if a request does not end at the last id of its chain. Compare
engines within one run, never seconds of two machines.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from engagement_platform.lake.jars import spark_jars
from engagement_platform.lake.session import build_classic, classic_conf
from engagement_platform.mutation.cascade import Engine, figures, resolve
from engagement_platform.settings import MutationSettings, Settings, SparkSettings

SHORTEST, LONGEST = 2, 20
CHAINED_PERCENT = 30
# One chain of each length: as many requests as their lengths make together.
BLOCK = sum(range(SHORTEST, LONGEST + 1))
console = Console(width=120)


@dataclass(frozen=True)
class Measured:
    """One round of one engine."""

    engine: Engine
    round: int
    requests: int
    seconds: float

    @property
    def requests_per_s(self) -> float:
        """Requests resolved per second, reading included."""
        return self.requests / self.seconds


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000, help="requests in one batch (default 1000000)")
    parser.add_argument("--organizations", type=int, default=1_000, help="organizations they are of (default 1000)")
    parser.add_argument("--engine", nargs="+", default=["pointer_doubling"], choices=get_args(Engine))
    parser.add_argument("--rounds", type=int, default=3, help="warm rounds per engine (default 3)")
    parser.add_argument("--seed", type=int, default=20201120, help="seed of the requests (default 20201120)")
    parser.add_argument("--out", type=Path, default=Path("artifacts"), help="folder for cascade.csv")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-cascade-"))
    try:
        with spark_session(folder, options.engine) as spark:
            edges = written(requests(spark, options.requests, options.organizations, options.seed), folder / "edges")
            measured = [one for engine in options.engine for one in measure(edges, engine, options)]
        report(measured, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def spark_session(folder: Path, engines: list[Engine]) -> Iterator[SparkSession]:
    """A Spark in this process, configured as the platform configures its own."""
    settings = Settings(
        home=folder,
        spark=SparkSettings(driver_memory="3g", conf={"spark.sql.warehouse.dir": str(folder / "warehouse")}),
        mutation=MutationSettings(resolver="graphframes" if "graphframes" in engines else "pointer_doubling"),
    )
    spark = build_classic(classic_conf(settings, spark_jars(settings)), "bench-cascade")
    try:
        yield spark
    finally:
        spark.stop()


def requests(spark: SparkSession, count: int, organizations: int, seed: int) -> DataFrame:
    """CONVERTs as `resolve` takes them. Ids are `<chain>-<length>-<place>`, so that an id tells where it must end."""
    blocks = count * CHAINED_PERCENT // 100 // BLOCK
    lengths = F.explode(F.sequence(F.lit(SHORTEST), F.lit(LONGEST))).alias("length")
    chains = spark.range(blocks).select(F.col("id").alias("chain"), lengths)
    alone = spark.range(blocks, blocks + count - blocks * BLOCK).select(
        F.col("id").alias("chain"), F.lit(1).alias("length")
    )
    hops = chains.unionByName(alone).select("*", F.explode(F.sequence(F.lit(1), F.col("length"))).alias("hop"))
    chance = F.xxhash64(F.lit(seed), "chain", "length")
    began = F.lit(1_780_000_000) + F.pmod(chance, F.lit(30 * 86_400))

    def person(hop: Column) -> Column:
        return F.format_string("%d-%d-%d", "chain", "length", hop)

    nothing = F.lit(None)
    return hops.select(
        F.format_string("org-%04d", F.pmod(F.xxhash64(chance), F.lit(organizations))).alias("organization_id"),
        F.format_string("r-%016x", F.xxhash64(F.lit(seed), "chain", "length", "hop")).alias("request_id"),
        F.lit("CONVERT").alias("operation"),
        person(F.col("hop") - 1).alias("from_id"),
        person(F.col("hop")).alias("to_id"),
        nothing.cast("string").alias("engagement_id"),
        nothing.cast("date").alias("engagement_date_from"),
        nothing.cast("date").alias("engagement_date_to"),
        F.timestamp_seconds(began + 60 * F.col("hop")).alias("execution_ts"),
    ).orderBy(F.xxhash64("request_id"))


def written(edges: DataFrame, path: Path) -> DataFrame:
    """The same from Parquet, so that making the requests is not timed."""
    edges.write.parquet(str(path))
    return edges.sparkSession.read.parquet(str(path))


def measure(edges: DataFrame, engine: Engine, options: argparse.Namespace) -> Iterator[Measured]:
    """A cold round and the warm ones, then one look at the result."""
    for round_ in range(options.rounds + 1):
        began = time.monotonic()
        resolve(edges, engine=engine).write.format("noop").mode("overwrite").save()
        one = Measured(engine, round_, options.requests, time.monotonic() - began)
        name = f"warm {round_}/{options.rounds}" if round_ else "cold"
        console.print(f"{engine:18} {name:9} {one.seconds:6.2f} s {one.requests_per_s:>9,.0f} requests/s")
        yield one
    check(resolve(edges, engine=engine).localCheckpoint(), options)


def check(resolved: DataFrame, options: argparse.Namespace) -> None:
    """Every request ends at the last id of its chain, after the hops that are left."""
    blocks = options.requests * CHAINED_PERCENT // 100 // BLOCK
    counts = cast("dict[str, int]", figures(resolved).collect()[0].asDict())
    wanted = (options.requests, blocks * (LONGEST - SHORTEST + 1), LONGEST if blocks else 1, options.requests)
    found = tuple(counts[name] for name in ("requests", "chains", "longest_chain", "operations"))
    assert found == wanted, f"requests, chains, longest chain and operations are {found}, not {wanted}"
    part = F.split("from_id", "-")
    end = F.concat_ws("-", part[0], part[1], part[1])
    left = part[1].cast("int") - part[2].cast("int")
    wrong = resolved.where(~F.col("to_id").eqNullSafe(end) | (F.col("hops") != left) | F.col("branches"))
    assert wrong.isEmpty(), f"does not end at the last id of its chain: {wrong.head()}"


def report(measured: list[Measured], options: argparse.Namespace) -> None:
    """Cold and the median of warm on the screen, every round as CSV."""
    for engine in options.engine:
        mine = [one for one in measured if one.engine == engine]
        warm = [one.requests_per_s for one in mine if one.round]
        said = f"{engine}: {mine[0].requests_per_s:,.0f} requests/s cold"
        console.print(f"{said}, {statistics.median(warm):,.0f} warm" if warm else said, highlight=False)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "cascade.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["engine", "round", "requests", "seconds", "organizations", "seed", "cores", "machine"])
        for one in measured:
            about = (options.organizations, options.seed, os.cpu_count(), platform.machine())
            writer.writerow([one.engine, one.round or "cold", one.requests, round(one.seconds, 3), *about])
    console.print(
        f"{options.requests:,} requests, {CHAINED_PERCENT} % in chains of {SHORTEST} to {LONGEST}, "
        f"{options.organizations:,} organizations, {os.cpu_count()} cores, Python {platform.python_version()}. "
        f"Every round: {options.out / 'cascade.csv'}",
        highlight=False,
    )


if __name__ == "__main__":
    main()
