"""How many requests a second are resolved?  python -m benchmarks.cascade --requests 1000000 --rounds 3

Data: seeded; three of ten requests in chains of 2 to 20 hops, equally many of each length, the others alone; spread
evenly over the organizations, in no order, written to Parquet before anything is timed. A round reads that, resolves it
by the rules, and throws the result away: one group for each organization (`organization`), or for the connected
components that GraphFrames finds first (`component`, as an organization above `mutation.max_edges_per_group` is split;
left out where its jars are missing); or only what one request in 10,000, which is new, leads to (`new`, as a batch does
beside all that were accepted before). The first round of each way is cold (code not compiled, classes not loaded), the
others are warm. Prints requests/s; writes cascade.csv. Fails if a request does not end at the last id of its chain.
Compare ways within one run, never seconds of two machines.
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

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from engagement_platform.lake.jars import spark_jars
from engagement_platform.lake.session import build_classic, classic_conf
from engagement_platform.pipelines.mutations import connected_components as groups
from engagement_platform.pipelines.mutations import rules
from engagement_platform.pipelines.mutations.connected_components import GraphFramesMissing
from engagement_platform.pipelines.mutations.rules import MOVE_DDL
from engagement_platform.pipelines.parts import unweighed
from engagement_platform.settings import Settings, SparkSettings

SHORTEST, LONGEST = 2, 20
CHAINED_PERCENT = 30
# One chain of each length: as many requests as their lengths make together.
BLOCK = sum(range(SHORTEST, LONGEST + 1))
WAYS = ("organization", "component", "new")
NEW_OF = 10_000
"""One request of so many is new in the way `new`."""
console = Console(width=120)


@dataclass(frozen=True)
class Measured:
    """One round of one way."""

    way: str
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
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS, metavar="WAY", help=f"of: {WAYS}")
    parser.add_argument("--rounds", type=int, default=3, help="warm rounds per way (default 3)")
    parser.add_argument("--seed", type=int, default=20201120, help="seed of the requests (default 20201120)")
    parser.add_argument("--out", type=Path, default=Path("artifacts"), help="folder for cascade.csv")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-cascade-"))
    try:
        with spark_session(folder) as spark:
            edges = written(requests(spark, options.requests, options.organizations, options.seed), folder / "edges")
            measured = [one for way in options.ways for one in measure(edges, way, options)]
        report(measured, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    """A Spark in this process, configured as the platform configures its own."""
    settings = Settings(
        home=folder,
        spark=SparkSettings(driver_memory="3g", conf={"spark.sql.warehouse.dir": str(folder / "warehouse")}),
    )
    spark = build_classic(classic_conf(settings, spark_jars(settings)), "bench-cascade")
    try:
        yield spark
    finally:
        spark.stop()


def requests(spark: SparkSession, count: int, organizations: int, seed: int) -> DataFrame:
    """CONVERTs as the alias table has them, with `sequence`. An id, `<chain>-<length>-<place>`, tells where it must
    end."""
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
        F.lit(0).cast("long").alias("sequence"),
    ).orderBy(F.xxhash64("request_id"))


def written(edges: DataFrame, path: Path) -> DataFrame:
    """The same from Parquet, so that making the requests is not timed."""
    edges.write.parquet(str(path))
    return edges.sparkSession.read.parquet(str(path))


def resolved(edges: DataFrame, way: str, options: argparse.Namespace) -> DataFrame:
    """What all requests, or those that are new, do to the ids they reach. Raises GraphFramesMissing."""
    if way == "new":
        is_new = F.pmod(F.xxhash64("request_id"), F.lit(NEW_OF)) == 0
        return groups.moves(edges.withColumn("sequence", is_new.cast("long")), 1, None, rules.moves, MOVE_DDL)
    most = None if way == "organization" else max(1, options.requests // options.organizations // 2)
    return groups.moves(edges, 0, most, rules.moves, MOVE_DDL)


def measure(edges: DataFrame, way: str, options: argparse.Namespace) -> Iterator[Measured]:
    """A cold round and the warm ones, then one look at the result."""
    try:
        for round_ in range(options.rounds + 1):
            began = time.monotonic()
            # As the jobs do.
            with unweighed(edges.sparkSession):
                resolved(edges, way, options).write.format("noop").mode("overwrite").save()
            one = Measured(way, round_, options.requests, time.monotonic() - began)
            name = f"warm {round_}/{options.rounds}" if round_ else "cold"
            console.print(f"{way:18} {name:9} {one.seconds:6.2f} s {one.requests_per_s:>9,.0f} requests/s")
            yield one
    except GraphFramesMissing as missing:
        console.print(f"{way}: left out. {missing}")
        return
    check(resolved(edges, way, options), options.requests, some=way == "new")


def check(found: DataFrame, requests: int, *, some: bool) -> None:
    """Every request moves its id, to the last one of its chain; some: only those that a new one concerns."""
    moves, ids = found.count(), found.select("organization_id", "source_person_id").distinct().count()
    right = moves < requests / 100 if some else moves == requests
    assert right, f"{moves} moves of {requests} requests"
    assert moves == ids, f"{moves} moves of {ids} ids"
    part = F.split("source_person_id", "-")
    end = F.concat_ws("-", part[0], part[1], part[1])
    wrong = found.where(~F.col("to_id").eqNullSafe(end) | F.col("engaged_before").isNull())
    assert wrong.isEmpty(), f"does not end at the last id of its chain: {wrong.head()}"


def report(measured: list[Measured], options: argparse.Namespace) -> None:
    """Cold and the median of warm on the screen, every round as CSV."""
    for way in dict.fromkeys(one.way for one in measured):
        mine = [one for one in measured if one.way == way]
        warm = [one.requests_per_s for one in mine if one.round]
        said = f"{way}: {mine[0].requests_per_s:,.0f} requests/s cold"
        console.print(f"{said}, {statistics.median(warm):,.0f} warm" if warm else said, highlight=False)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "cascade.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["way", "round", "requests", "seconds", "organizations", "seed", "cores", "machine"])
        for one in measured:
            about = (options.organizations, options.seed, os.cpu_count(), platform.machine())
            writer.writerow([one.way, one.round or "cold", one.requests, round(one.seconds, 3), *about])
    console.print(
        f"{options.requests:,} requests, {CHAINED_PERCENT} % in chains of {SHORTEST} to {LONGEST}, "
        f"{options.organizations:,} organizations, {os.cpu_count()} cores, Python {platform.python_version()}. "
        f"Every round: {options.out / 'cascade.csv'}",
        highlight=False,
    )


if __name__ == "__main__":
    main()
