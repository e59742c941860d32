"""Jars are resolved once and whole; Java is found or asked for in one sentence."""

from __future__ import annotations

import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import pytest

from engagement_platform.lake import jars
from engagement_platform.lake.jars import (
    JarsUnavailable,
    JavaMissing,
    find_java,
    logging_jars,
    own_jar,
    resolve_jars,
)
from engagement_platform.settings import Settings, SparkSettings

MODULES = "java.base@{0}\njdk.compiler@{0}\njdk.incubator.vector@{0}\n"


@pytest.fixture(autouse=True)
def fresh_search() -> Iterator[None]:
    find_java.cache_clear()
    yield
    find_java.cache_clear()


def java_home(folder: Path, says: str, status: int = 0) -> Path:
    """A JAVA_HOME whose `java` prints this."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat <<'EOF'\n{says}EOF\nexit {status}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def test_java_home_wins_over_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path, MODULES.format("21.0.4"))))
    assert find_java() == tmp_path / "bin" / "java"


@pytest.mark.parametrize(
    ("says", "status", "reason"),
    [
        (MODULES.format("11.0.2"), 0, "is Java 11"),
        ("Unrecognized option: --list-modules\n", 1, "older than 9"),
        ("java.base@17.0.15\njdk.compiler@17.0.15\n", 0, r"lacks the module jdk\.incubator\.vector"),
        ("java.base@17.0.15\njdk.incubator.vector@17.0.15\n", 0, r"lacks the module jdk\.compiler"),
    ],
)
def test_a_java_that_spark_cannot_use_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, status: int, reason: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path, says, status)))
    with pytest.raises(JavaMissing, match=rf"{reason}.*openjdk-17-jdk-headless"):
        find_java()


def test_no_java_at_all_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"No Java found\. Install"):
        find_java()


def test_the_cache_holds_every_declared_jar_and_nothing_else(spark_jars: list[Path]) -> None:
    names = {jar.name for jar in spark_jars}
    assert "delta-spark_4.2_2.13-4.4.0.jar" in names
    assert len(names) == 8
    assert all(jar.stat().st_size > 0 for jar in spark_jars)


def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """An ivy.xml and a cache whose Ivy is a `java` that makes two jars and counts its starts."""
    program = java_home(tmp_path / "jdk", MODULES.format("17.0.1")) / "bin" / "java"
    program.write_text(
        f"""#!{sys.executable}
import pathlib, sys, time
if "--list-modules" in sys.argv:
    print({MODULES.format("17.0.1")!r})
    sys.exit()
with open({str(tmp_path / "starts")!r}, "a") as starts:
    starts.write("x")
folder = pathlib.Path(sys.argv[sys.argv.index("-retrieve") + 1]).parent
folder.mkdir()
(folder / "a-1.jar").write_bytes(b"a")
time.sleep(0.3)
(folder / "b-1.jar").write_bytes(b"b")
"""
    )
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    ivy = tmp_path / "ivy.xml"
    ivy.write_text("<ivy-module/>")
    return ivy, tmp_path / "cache"


def test_a_changed_declaration_is_a_new_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ivy, cache = made_up(tmp_path, monkeypatch)
    before = resolve_jars("spark", cache, ivy_file=ivy)
    ivy.write_text("<ivy-module><!-- more --></ivy-module>")
    after = resolve_jars("spark", cache, ivy_file=ivy)
    assert before[0].parent != after[0].parent
    assert before[0].exists()


def test_two_processes_at_once_resolve_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ivy, cache = made_up(tmp_path, monkeypatch)
    code = (
        "import pathlib, sys; from engagement_platform.lake.jars import resolve_jars; "
        "print(len(resolve_jars('spark', pathlib.Path(sys.argv[1]), ivy_file=pathlib.Path(sys.argv[2]))))"
    )
    command = [sys.executable, "-c", code, str(cache), str(ivy)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=30)[0].strip() for process in both] == ["2", "2"]
    assert (tmp_path / "starts").read_text() == "x"


def test_an_artefact_that_is_not_there_is_named_and_nothing_is_kept(tmp_path: Path) -> None:
    # Asks no network: the only repository is an empty folder.
    ivy, settings = tmp_path / "ivy.xml", tmp_path / "settings.xml"
    ivy.write_text(
        """<ivy-module version="2.0"><info organisation="o" module="m" revision="1"/>
        <configurations><conf name="spark"/></configurations>
        <dependencies><dependency org="org.example" name="absent" rev="9" conf="spark->default"/></dependencies>
        </ivy-module>"""
    )
    settings.write_text(
        f"""<ivysettings><settings defaultResolver="here"/><resolvers><filesystem name="here">
        <artifact pattern="{tmp_path}/[artifact]-[revision].[ext]"/></filesystem></resolvers></ivysettings>"""
    )
    with pytest.raises(JarsUnavailable, match=r"org\.example#absent;9.*engagement-platform setup"):
        resolve_jars("spark", tmp_path / "cache", ivy_file=ivy, settings=settings)
    assert not list((tmp_path / "cache").glob("*/spark"))


def test_the_logging_jars_come_from_pyspark() -> None:
    assert [jar.name.rsplit("-", 1)[0] for jar in logging_jars()] == list(jars.LOGGING_JARS)


CORE, CONNECT = "graphframes-spark4_2.13-0.12.3.jar", "graphframes-connect-spark4_2.13-0.12.3.jar"


def with_folder(folder: Path, *names: str) -> Settings:
    """Settings with a folder of jars with these names."""
    for name in names:
        (folder / name).write_bytes(b"")
    (folder / "notes.txt").write_text("no jar")
    return Settings(lake_uri=None, home=folder / "home", spark=SparkSettings(jar_folder=folder))


def compiled(among: list[Path]) -> Path:
    """The jar of the platform's own classes, in the cache that the settings' default names."""
    return own_jar(SparkSettings().jar_cache, among)


def test_graphframes_in_the_folder_of_jars_is_not_downloaded(spark_jars: list[Path], tmp_path: Path) -> None:
    found = jars.spark_jars(with_folder(tmp_path, CORE, "other.jar"))
    assert found == [*spark_jars, tmp_path / CORE, tmp_path / "other.jar", compiled(spark_jars)]


def test_of_two_jars_with_one_name_that_of_the_folder_counts(spark_jars: list[Path], tmp_path: Path) -> None:
    found = jars.spark_jars(with_folder(tmp_path, CORE, spark_jars[0].name))
    others = [*spark_jars[1:], compiled(spark_jars)]
    assert sorted(found) == sorted([*others, tmp_path / CORE, tmp_path / spark_jars[0].name])


def test_without_graphframes_in_the_folder_what_was_downloaded_before_is_taken_and_nothing_is_downloaded(
    spark_jars: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = {"graph": [tmp_path / "cached" / CORE]}
    monkeypatch.setattr(jars, "cached_jars", lambda conf, _cache, **_: cached.get(conf, []))
    settings = with_folder(tmp_path, CONNECT)
    ours = compiled(spark_jars)
    assert jars.spark_jars(settings) == [*spark_jars, tmp_path / "cached" / CORE, tmp_path / CONNECT, ours]
    cached.clear()
    assert jars.spark_jars(settings) == [*spark_jars, tmp_path / CONNECT, ours]


def test_a_source_on_s3_brings_the_jars_of_s3a_to_a_lake_on_a_disk(
    spark_jars: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def resolved(conf: str, *_: object, **__: object) -> list[Path]:
        asked.append(conf)
        return spark_jars if conf == "spark" else []

    monkeypatch.setattr(jars, "resolve_jars", resolved)
    settings = Settings(lake_uri=None, home=tmp_path / "home")
    for source, confs in (("", ["spark"]), ("/old/store", ["spark"]), ("s3a://old/store", ["spark", "s3"])):
        jars.spark_jars(settings, source)
        assert asked == confs
        asked.clear()


def test_a_folder_without_jars_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        settings = Settings(lake_uri=None, home=tmp_path / "home", spark=SparkSettings(jar_folder=folder))
        with pytest.raises(JarsUnavailable, match=rf"spark\.jar_folder is {folder}"):
            jars.spark_jars(settings)


def test_the_configuration_of_graphs_has_the_plugin_of_connect_servers_in_the_version_of_graphframes() -> None:
    module = ElementTree.parse(jars.IVY_FILE).getroot()
    graph = [each for each in module.iter("dependency") if each.get("conf") == "graph->master"]
    assert {each.get("name") for each in graph} == {
        "graphframes-spark4_2.13",
        "graphframes-graphx-spark4_2.13",
        "graphframes-connect-spark4_2.13",
    }
    assert {(each.get("org"), each.get("rev")) for each in graph} == {("io.graphframes", version("graphframes-py"))}


def test_the_own_classes_are_compiled_once_for_each_delta(spark_jars: list[Path], tmp_path: Path) -> None:
    first = own_jar(tmp_path, spark_jars)
    made = first.stat().st_mtime_ns
    assert own_jar(tmp_path, spark_jars) == first
    assert first.stat().st_mtime_ns == made
    [storage] = [jar for jar in spark_jars if jar.name.startswith("delta-storage-")]
    newer = tmp_path / "delta-storage-99.jar"
    newer.write_bytes(storage.read_bytes())
    others = [newer if jar == storage else jar for jar in spark_jars]
    assert own_jar(tmp_path, others).parent != first.parent
    assert len(list(tmp_path.glob("*/*"))) == 2, "something is left of compiling"


def test_a_delta_that_the_own_classes_do_not_fit_is_named_and_no_jar_is_kept(tmp_path: Path) -> None:
    strange = tmp_path / "delta-storage-99.jar"
    with zipfile.ZipFile(strange, "w") as archive:
        archive.writestr("nothing", "of Delta")
    with pytest.raises(JarsUnavailable, match=r"LocalLogStore do not compile with delta-storage-99\.jar: "):
        own_jar(tmp_path / "cache", [strange])
    assert not list(tmp_path.glob("cache/*/*"))
