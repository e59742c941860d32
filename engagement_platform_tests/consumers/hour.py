"""An hour of everything that happens to the tables, at random, and replicas that follow it in every way there is.

One walk is one seed: what happens next, who reads meanwhile, and who dies before the commit. No assertions here but
those on what a step itself promises.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import cast

from deltalake import DeltaTable
from pyspark.sql import DataFrame
from typer.testing import CliRunner, Result

from engagement_platform.cli import app
from engagement_platform.consumers import Changes, TooFarBehind
from engagement_platform.consumers.in_spark import as_now, stream
from engagement_platform.erasing.job import Eraser
from engagement_platform.erasing.subject_lookup import SubjectIds
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.maintenance.layout.optimize import Asked as Upkeep
from engagement_platform.maintenance.layout.optimize import optimize, planned
from engagement_platform.maintenance.layout.vacuum import RetentionTooShort, vacuum_tables
from engagement_platform.maintenance.rollback.groups import RestoreRefused
from engagement_platform.maintenance.rollback.plan import Asked, RestoreMode
from engagement_platform.pipelines.engagements.schema import CURRENT_ROW
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.snapshot import DATA, current, snapshot
from engagement_platform.settings import MutationSettings
from engagement_platform_tests.consumers.lakes import Replica, Rows, by_key, rows_of_duckdb
from engagement_platform_tests.ingestion.world import World
from engagement_platform_tests.maintenance.rollback.test_restore import restoring
from engagement_platform_tests.pipelines.mutations import histories
from engagement_platform_tests.pipelines.mutations.histories import Message
from examples.replica import refresh


def put(rows: Rows, frame: DataFrame) -> None:
    """Rows of `as_now` over what a replica has."""
    for key, row in by_key(frame.toArrow()).items():
        if row.pop("change_type") == "DELETE":
            rows.pop(key, None)
        else:
            del row["previous_person_id"]
            rows[key] = row


def plain(rows: Rows) -> Rows:
    """Values whatever engine they came from."""
    return {
        key: {
            **row,
            "engagement": {**row["engagement"], "attributes": dict(row["engagement"]["attributes"] or {})},
        }
        for key, row in rows.items()
    }


def standing(world: World) -> Rows:
    """What readers see, as Spark's view says it."""
    rows = current(world.lake, snapshot(world.lake.root)).select(*CURRENT_ROW.names)
    return by_key(rows.toArrow().cast(CURRENT_ROW))


class Streamed:
    """`readStream`, each micro-batch joined to the rows of now."""

    name = "stream"

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.checkpoint, self.rows = world, str(folder / "checkpoint"), cast(Rows, {})

    def follow(self, dice: random.Random) -> None:
        """All that there is; Spark keeps how far it is."""

        def micro_batch(frame: DataFrame, _batch: int) -> None:
            put(self.rows, as_now(self.world.lake, frame))

        url = self.world.settings.store_url
        source = stream(self.world.lake, name=self.name, checkpoint=self.checkpoint, store_url=url)
        query = source.writeStream.foreachBatch(micro_batch).option("checkpointLocation", self.checkpoint)
        query.trigger(availableNow=True).start().awaitTermination()


class Here(Replica):
    """`Changes`, without a JVM."""

    name = "here"

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world, self.resnapshots = world, 0

    def keep_up(self, dice: random.Random) -> None:
        """All that there is; it may die before it commits, and takes a snapshot where nothing else helps."""
        try:
            for batch in self._changes(dice):
                self.apply(batch)
                if dice.random() < 0.3:
                    break
            self.follow(self._changes(dice))
        except TooFarBehind:
            self.resnapshots += 1
            anew = self._changes(dice)
            self.rows = by_key(anew.resnapshot().table())
            anew.commit()

    def _changes(self, dice: random.Random) -> Changes:
        url = self.world.settings.store_url
        return Changes(self.world.settings.lake, name=self.name, max_rows=dice.choice((1, 5, 1000)), store_url=url)


class Copied:
    """The replica in DuckDB, which keeps its rows and its position itself."""

    name = "copied"

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.file, self.snapshots = world, folder / "replica.duckdb", 0
        folder.mkdir(parents=True, exist_ok=True)

    def follow(self, dice: random.Random) -> None:
        """All that there is."""
        self.snapshots += refresh(self.world.settings, self.file, name=self.name, max_rows=dice.choice((1, 5, 1000)))

    @property
    def rows(self) -> Rows:
        """What the file has."""
        return rows_of_duckdb(self.file)


class Shell:
    """`engagement-platform consume` into a file of lines, each put in its place by whoever reads the file."""

    name = "shell"

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.file, self.resnapshots = world, folder / "changes.jsonl", 0
        folder.mkdir(parents=True, exist_ok=True)
        self.file.touch()

    def follow(self, dice: random.Random) -> None:
        """All that there is; it takes a snapshot where nothing else helps, as the refusal says."""
        said = self._consume("--max-rows", str(dice.choice((1, 5, 1000))))
        if isinstance(said.exception, TooFarBehind):
            self.resnapshots += 1
            said = self._consume("--resnapshot")
        assert said.exit_code == 0, f"{said.output}{said.exception!r}"

    def _consume(self, *words: str) -> Result:
        settings = self.world.settings
        told = {"HOME": str(settings.home), "LAKE_URI": settings.lake, "STORES__URL": settings.store_url}
        env = {f"ENGAGEMENT_PLATFORM_{name}": value for name, value in told.items()}
        return CliRunner().invoke(app, ["consume", "--name", self.name, "--out", str(self.file), *words], env=env)

    @property
    def rows(self) -> Rows:
        """What all lines lead to, one after the other."""
        found: Rows = {}
        for line in self.file.read_text().splitlines():
            row = json.loads(line)
            key = (row["organization_id"], row["engagement_id"])
            if row.pop("change_type") == "DELETE":
                found.pop(key, None)
                continue
            row.pop("previous_person_id", None)
            row["engagement_date"] = date.fromisoformat(row["engagement_date"])
            row["engagement_ts"] = datetime.fromisoformat(row["engagement_ts"])
            found[key] = row
        return found


@dataclass
class Hour:
    """A world and its readers. `walk` makes things happen, `settle` lets everybody read to the end."""

    world: World
    folder: Path
    seed: int
    did: list[str] = field(default_factory=list)
    """What happened, in order: a failure is told by it."""

    def __post_init__(self) -> None:
        self.world.ticks = True
        self.dice = random.Random(self.seed)
        self.left: list[Message] = []
        self.versions: list[int] = []
        """Of the Data Table between batches: what may be gone back to."""
        self.here, self.sleeper = Here(self.world), Here(self.world)
        self.sleeper.name = "sleeper"
        self.streamed = Streamed(self.world, self.folder)
        self.copied, self.shell = Copied(self.world, self.folder), Shell(self.world, self.folder)

    @property
    def readers(self) -> tuple[Callable[[random.Random], None], ...]:
        """How everybody but the sleeper reads all that there is."""
        return self.here.keep_up, self.streamed.follow, self.copied.follow, self.shell.follow

    @property
    def steps(self) -> dict[str, tuple[int, Callable[[], None]]]:
        """Name -> (how often among the others, what it does)."""
        return {
            "traffic": (6, self.traffic),
            "requests": (4, self.requests),
            "rematerialize": (2, self.rematerialize),
            "restore, replay": (1, lambda: self.restore("replay")),
            "restore, drop": (1, lambda: self.restore("drop")),
            "erase": (1, self.erase),
            "optimize": (2, self.optimize),
            "vacuum": (1, self.vacuum),
            "removed from outside": (1, self.removed_from_outside),
        }

    def walk(self, steps: int) -> None:
        """So many steps; now and then somebody reads in between."""
        names = list(self.steps)
        weights = [weight for weight, _ in self.steps.values()]
        self.do("traffic")
        for _ in range(steps):
            self.do(self.dice.choices(names, weights)[0])
            for reader in self.readers:
                if self.dice.random() < 0.4:
                    reader(self.dice)

    def do(self, name: str) -> None:
        """One step."""
        self.did.append(name)
        self.steps[name][1]()
        if DeltaTable.is_deltatable(self.world.lake.uri(self.world.data)):
            self.versions.append(self.world.lake.version(self.world.data))

    def read(self) -> None:
        """Everybody but the sleeper reads all that there is."""
        for reader in self.readers:
            reader(self.dice)

    def settle(self) -> dict[str, Rows]:
        """Everybody reads all that there is; what each has then, by its name."""
        self.read()
        self.sleeper.keep_up(self.dice)
        everybody = (self.here, self.sleeper, self.streamed, self.copied, self.shell)
        found = {each.name: each.rows for each in everybody}
        return {name: plain(rows) for name, rows in found.items()}

    def traffic(self) -> None:
        """Engagements, new, newer, known and late, and the requests that come among them."""
        calm = histories.engagement(f"calm-{len(self.did)}", "p1", 10)
        self._send([calm, *self._next(self.dice.randrange(2, 10))])

    def requests(self) -> None:
        """Mostly requests."""
        some = self._next(14)
        self._send([message for message in some if "request_id" in message] or some)

    def rematerialize(self) -> None:
        """Everything pending moves into the Data Table, in one of the ways."""
        how = self.dice.choice(("merge", "deletion_vectors", "overwrite"))
        world = self.world.under(mutation=MutationSettings.model_validate({"apply": how}))
        world.run(name=REMATERIALIZE_ALIASES)

    def restore(self, mode: RestoreMode) -> None:
        """Back to some version that was between two batches; what is replayed then lands again, or not at all."""
        to = self.dice.choice(self.versions[-4:])
        try:
            report = restoring(self.world).run(Asked(DATA.name, to, mode=mode, reason="a drill", by="an@hour"))
            self.did[-1] += " (nothing to do)" if report is None else ""
        except RestoreRefused as refused:
            if "is an erasure" not in str(refused):
                raise
            self.did[-1] += " (refused: an erasure came since)"
        self._run()

    def erase(self) -> None:
        """Somebody who stands is erased for good; whoever reads drops the rows."""
        persons = {(organization, row["person_id"]) for (organization, _), row in standing(self.world).items()}
        there = sorted(persons - {("org", "p1")})
        if not there:
            self.did[-1] += " (nobody is there)"
            return
        organization, person = self.dice.choice(there)
        whom = SubjectIds.of(person, organizations=[organization])
        Eraser(self.world.settings, self.world.stores).run(f"ref-{len(self.did)}", whom)
        left = standing(self.world).items()
        assert not [key for key, row in left if (key[0], row["person_id"]) == (organization, person)]
        self.versions.clear()

    def optimize(self) -> None:
        """Files are merged, as every night, also where that would not be worth it."""
        list(optimize(self.world.settings, planned(self.world.settings, Upkeep())))
        for table in (self.world.data, NOTIFICATION):
            self._compact(table)

    def vacuum(self) -> None:
        """What nobody needs goes; what somebody has yet to read does not."""
        list(vacuum_tables(self.world.settings))
        try:
            list(vacuum_tables(self.world.settings, NOTIFICATION.name, hours=0))
        except RetentionTooShort:
            return
        raise AssertionError("VACUUM removed what readers and rollbacks need")

    def removed_from_outside(self) -> None:
        """Somebody keeps no retention: who sleeps has been away for too long. Streams have no way out, so they read."""
        self.streamed.follow(self.dice)
        if DeltaTable.is_deltatable(self.world.lake.uri(NOTIFICATION)):
            uri = self._compact(NOTIFICATION)
            kept = {Path(name).name for name in DeltaTable(uri).file_uris()}
            for file in Path(uri).rglob("*.parquet"):
                if "_delta_log" not in file.parts and file.name not in kept:
                    file.unlink()

    def _compact(self, table: Table) -> str:
        """Merge the files of a table; where it is."""
        uri = self.world.lake.uri(table)
        self.world.spark.sql(f"OPTIMIZE delta.`{uri}`").collect()
        return uri

    def _next(self, most: int) -> list[Message]:
        if len(self.left) < most:
            organizations = self.dice.sample(range(self.seed * 100, self.seed * 100 + 90), 3)
            told = [histories.random_history(n, organization=f"org-{n}-{len(self.did)}") for n in organizations]
            while any(told):
                self.left.append(self.dice.choice([history for history in told if history]).pop(0))
        some, self.left = self.left[:most], self.left[most:]
        return some

    def _send(self, messages: Sequence[Message]) -> None:
        if said := [message for message in messages if "request_id" not in message]:
            self.world.produce(said)
        if asked := [message for message in messages if "request_id" in message]:
            self.world.produce_requests(asked)
        self._run()

    def _run(self) -> None:
        for job in (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, APPLY_MUTATIONS):
            self.world.run(name=job)
