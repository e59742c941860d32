"""What a performance test is asked to do: the JSON file, its permutations, and which of its values are secrets.

Reading and naming only. Running is `run`, the work of one permutation `one`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Literal, Self, get_args
from urllib.parse import quote

from pydantic import Field, SecretStr, ValidationError, model_validator

from benchmarks.perftest.data import ENTITY, Generated
from engagement_platform.errors import PlatformError
from engagement_platform.pipelines.profiles.entity import Entity, profile
from engagement_platform.pipelines.profiles.view import choose
from engagement_platform.settings import Section, Settings

Operation = Literal["read", "write"]
Method = Literal["double_rank_over", "full_outer_join", "left_join_anti_join", "left_join_union_inserts"]
METHODS: tuple[Method, ...] = get_args(Method)

HIDDEN = "***"

# As Spark decides it by default (spark.redaction.regex), and what else is called so.
_SECRET_NAME = re.compile(r"(?i)secret|password|token|access[.]?key|credential|jaas|api[-._]?key|private|[.]key\b")


class SpecRefused(PlatformError):
    """The file of a performance test cannot be used. Never holds a value of it: some are secrets."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is no performance test: {why}. Nothing was measured.")


class Cluster(Section):
    """Where Spark runs and how; what is not said is as in the platform's settings."""

    remote: str | None = Field(default=None, pattern=r"^sc://", description="Spark Connect endpoint.")
    token: SecretStr | None = Field(default=None, min_length=1, description="Access token for `remote`.")
    master: str | None = Field(default=None, description="Without `remote`: spark.master of each fresh process.")
    driver_memory: str | None = Field(default=None, description="Without `remote`: heap of each fresh process.")
    shuffle_partitions: int | None = Field(default=None, ge=1, description="spark.sql.shuffle.partitions.")
    conf: dict[str, SecretStr] = Field(default_factory=dict, description="More configuration.")

    @model_validator(mode="after")
    def _token_apart(self) -> Self:
        if "token=" in (self.remote or ""):
            raise ValueError("the token stands in cluster.remote; give it as cluster.token, where it is kept secret")
        if self.token is not None and self.remote is None:
            raise ValueError("cluster.token is for a cluster.remote, and there is none")
        return self


class Spec(Section):
    """Every permutation of run, operation, method and, for reads, query; each in a fresh Spark, all else the same."""

    name: str = Field(default="views", pattern=r"^[a-z0-9][a-z0-9_-]{0,40}$", description="For people.")
    runs: int = Field(default=3, ge=1, description="Times that everything is measured.")
    operations: tuple[Operation, ...] = Field(default=("read", "write"), min_length=1)
    methods: tuple[Method, ...] = Field(default=METHODS, min_length=1)
    read_queries: tuple[str, ...] = Field(
        default=("email LIKE '%9999@%'",),
        min_length=1,
        description="Predicates in Spark SQL over the view's columns. One that is true of few rows makes Spark look at "
        "all of them; otherwise it ends with the first `show_rows`.",
    )
    show_rows: int = Field(default=20, ge=1, description="Rows that a read shows.")
    lake: str | None = Field(default=None, description="Root of a lake with profiles. Not given: rows are made.")
    generate: Generated | None = Field(default=None, description="The rows that are made; not with `lake`.")
    cluster: Cluster = Field(default_factory=Cluster)
    timeout: timedelta = Field(default=timedelta(hours=1), description="For one permutation, start of Spark included.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.lake is not None and self.generate is not None:
            raise ValueError("give lake or generate, not both")
        for name in ("operations", "methods", "read_queries"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ValueError(f"{name} names something twice")
        return self

    @property
    def rows(self) -> Generated | None:
        """The rows to make; None where a lake is given."""
        return (self.generate or Generated()) if self.lake is None else None


@dataclass(frozen=True)
class Permutation:
    """One measurement."""

    run: int
    operation: Operation
    method: Method
    query: str
    """Empty for a write, which writes everything."""

    def __str__(self) -> str:
        return f"run {self.run}  {self.operation:5} {self.method:23} {self.query}".rstrip()


def permutations(spec: Spec) -> Iterator[Permutation]:
    """All of them, methods in turn, so that a slow minute of the machine hits each of them."""
    for run, operation in product(range(1, spec.runs + 1), spec.operations):
        queries = spec.read_queries if operation == "read" else ("",)
        for query, method in product(queries, spec.methods):
            yield Permutation(run, operation, method, query)


def read_spec(path: Path) -> tuple[Spec, str]:
    """The spec of a file, and its text, which a fresh process is handed. Raises SpecRefused."""
    try:
        # Written anew, so that a secret stands in it in one form, of which `secrets` knows.
        text = json.dumps(json.loads(path.read_text(encoding="utf-8")))
        return parse(text), text
    except (OSError, UnicodeDecodeError) as error:
        raise SpecRefused(path, f"it cannot be read ({type(error).__name__})") from None
    except json.JSONDecodeError as error:
        raise SpecRefused(path, f"it is not JSON: {error.msg} in line {error.lineno}") from None
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False, include_context=False)
        wrong = (f"{'.'.join(map(str, one['loc'])) or 'the whole'}: {one['msg']}" for one in problems)
        raise SpecRefused(path, "; ".join(wrong)) from None


def parse(text: str) -> Spec:
    """A spec from its text. Raises pydantic's ValidationError."""
    return Spec.model_validate_json(text)


def settings_of(spec: Spec, settings: Settings, root: str) -> Settings:
    """The platform's settings with what the spec says, for the lake under `root`. Holds the token."""
    cluster = spec.cluster
    changed: dict[str, object] = {
        name: value
        for name in ("master", "driver_memory", "shuffle_partitions")
        if (value := getattr(cluster, name)) is not None
    }
    changed["remote"] = _with_token(cluster)
    changed["conf"] = {**settings.spark.conf, **cluster.conf}
    return settings.model_copy(update={"lake_uri": root, "spark": settings.spark.model_copy(update=changed)})


def _with_token(cluster: Cluster) -> SecretStr | None:
    if cluster.remote is None:
        return None
    if cluster.token is None:
        return SecretStr(cluster.remote)
    apart = "" if "/;" in cluster.remote else "/"
    return SecretStr(f"{cluster.remote}{apart};token={quote(cluster.token.get_secret_value(), safe='')}")


def entity_of(spec: Spec, settings: Settings) -> Entity:
    """What is measured: made rows, or the profiles of a lake. Raises PlatformError for a method that is not valid."""
    entity = ENTITY if spec.lake is None else profile(settings)
    for method in spec.methods:
        choose(entity, method, broadcast=True)
    return entity


def secrets(spec: Spec, settings: Settings) -> list[str]:
    """Whatever must not be seen, in each form in which it may turn up; longest first."""
    values = [value.get_secret_value() for key, value in spec.cluster.conf.items() if _SECRET_NAME.search(key)]
    values += [value for key, value in settings.spark.own_conf.items() if _SECRET_NAME.search(key)]
    if spec.cluster.token is not None:
        values.append(spec.cluster.token.get_secret_value())
    return sorted({form for value in values if value for form in _forms(value)}, key=len, reverse=True)


def _forms(value: str) -> set[str]:
    """A value as it stands, in an address, in Python, and as JSON within JSON: what a careless library would print."""
    forms = {value, quote(value), quote(value, safe=""), repr(value)[1:-1]}
    for _ in range(2):
        forms |= {json.dumps(form, ensure_ascii=ascii_)[1:-1] for form in forms for ascii_ in (True, False)}
    return forms


def redacted(text: str, hidden: Iterable[str]) -> str:
    """A text without secrets."""
    for secret in hidden:
        text = text.replace(secret, HIDDEN)
    return text


def parameters(spec: Spec, settings: Settings, versions: Mapping[str, int]) -> dict[str, object]:
    """All that a figure depends on and that is the same for each permutation; without secrets.

    settings: as `settings_of` gives them. versions: of the tables that are read.
    """
    spark = settings.spark
    rows = spec.rows
    return {
        "data": {"lake": spec.lake} if rows is None else rows.model_dump(mode="json"),
        "versions": dict(versions),
        "show_rows": spec.show_rows,
        "spark": {
            "remote": spark.endpoint,
            "master": None if spark.remote else spark.master,
            "driver_memory": None if spark.remote else spark.driver_memory,
            "shuffle_partitions": spark.shuffle_partitions,
            "conf": {k: HIDDEN if _SECRET_NAME.search(k) else v for k, v in sorted(spark.own_conf.items())},
        },
        "merge_on_read": settings.merge_on_read.model_dump(mode="json"),
        "layout": settings.layout.model_dump(mode="json"),
        "machine": {
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
            "processor": platform.machine(),
        },
        "software": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("pyspark", "delta-spark", "deltalake")},
        },
    }


def digest(value: object) -> str:
    """A short name for parameters: the same for the same, another for others."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
