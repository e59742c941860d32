"""The files of deploy/ agree with the platform, with each other and with what a container may do. Starts nothing."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import typer
import yaml
from dagster_postgres import DagsterPostgresStorage
from packaging.requirements import Requirement

from engagement_platform.cli import app
from engagement_platform.defs.code_server import LOCATION
from engagement_platform.local.services import topics
from engagement_platform.pipelines.declarations.declared import declarations
from engagement_platform.settings import ENV_PREFIX, Settings
from engagement_platform_tests.docs.deploy_files import (
    DEPLOY,
    DEPLOYMENTS,
    EXAMPLE,
    FILES,
    IMAGE,
    KUBERNETES,
    OURS,
    PROJECT,
    SERVICES,
    VARIABLE,
    all_of,
    compose,
    env_file,
    given_in_kubernetes,
    instructions,
    only,
    read,
)
from engagement_platform_tests.docs.kubernetes_objects import Service
from engagement_platform_tests.docs.pages import ROOT, name
from engagement_platform_tests.docs.test_pages import NOT_SETTINGS, setting_names
from tools.runtime_lock import EXTRAS, NotLocked, needed_by_the_platform, part_of

WORKSPACE = "/opt/engagement-platform/dagster/workspace.yaml"
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
EVERY_SERVICE = pytest.mark.parametrize("service", SERVICES)


# What all files have in common.


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_variable_of_the_platform_is_a_setting(path: Path) -> None:
    known = {ENV_PREFIX + setting.replace(".", "__").upper() for setting in setting_names()} | NOT_SETTINGS
    assert set(re.findall(rf"\b{ENV_PREFIX}[A-Z]\w*", path.read_text(encoding="utf-8"))) - known == set()


def test_every_image_has_a_tag_and_none_is_the_latest() -> None:
    stages = [rest.partition(" AS ")[2] for word, rest in instructions() if word == "FROM"]
    bases = [rest.partition(" AS ")[0] for word, rest in instructions() if word == "FROM"]
    images = [base for base in bases if base not in stages]
    images += [part["image"] for part in SERVICES.values()]
    images += [only(deployment).image for deployment in DEPLOYMENTS.values()]
    for image in images:
        _, colon, tag = image.rpartition(":")
        assert colon, f"{image} has no tag"
        assert tag != "latest", image
        assert any(character.isdigit() for character in tag), f"{image} names no version"


def test_the_image_of_the_platform_is_of_this_version_everywhere() -> None:
    assert {only(deployment).image for deployment in DEPLOYMENTS.values()} == {IMAGE}
    assert {service for service, part in SERVICES.items() if "build" in part} == set(OURS)
    [image] = read(KUBERNETES / "kustomization.yaml")["images"]
    assert f"{image['name']}:{image['newTag']}" == IMAGE
    written = "\n".join(path.read_text(encoding="utf-8") for path in (*FILES, ROOT / "docs" / "deploy.md"))
    assert set(re.findall(rf"\b{PROJECT['name']}:\d+\.\d+\.\d+", written)) == {IMAGE}


def test_examples_of_secrets_are_obviously_fake_and_git_ignores_the_real_ones() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    examples = [path for path in DEPLOY.rglob("*") if path.name.endswith(".example")]
    assert len(examples) == 3
    for path in examples:
        assert all("change-me" in value for value in env_file(path).values())
        assert f"/{name(path).replace('.example', '')}" in ignored


def check(command: Sequence[str]) -> None:
    """Raise AssertionError where a command of the image is none that its programs take; call nothing."""
    from dagster._daemon.cli import create_dagster_daemon_cli
    from dagster_webserver.cli import dagster_webserver

    program, *arguments = [str(word).replace(WORKSPACE, str(DEPLOY / "workspace.yaml")) for word in command]
    groups: dict[str, Any] = {
        "engagement-platform": lambda: typer.main.get_command(app),
        "dagster-daemon": create_dagster_daemon_cli,
    }
    if program in groups:
        taken(groups[program]().commands[arguments[0]], arguments[1:])
    elif arguments[:2] == ["-m", "engagement_platform.local.webserver"]:
        taken(dagster_webserver, arguments[2:])
    elif arguments[0] == "-m":
        found = importlib.util.find_spec(arguments[1])
        assert found is not None
        assert found.origin is not None
        source = Path(found.origin).read_text(encoding="utf-8")
        assert '__name__ == "__main__"' in source
        options = {word.partition("=")[0] for word in arguments[2:] if word.startswith("--")}
        assert options <= set(re.findall(r'add_argument\("(--\w+)"', source))
    else:
        assert (program, arguments[0]) == ("python", "-c")
        ast.parse(arguments[1])


def taken(command: Any, arguments: list[str]) -> None:
    """Raise AssertionError where a command of click's does not take these arguments."""
    try:
        command.make_context("command", arguments)
    except Exception as error:
        # Typer has a copy of click, whose errors are its own.
        if type(error).__name__ in ("BadParameter", "MissingParameter", "NoSuchOption", "UsageError"):
            raise AssertionError(f"{command.name} {arguments}: {error}") from error
        raise


COMMANDS = [
    *(pytest.param(part["command"], id=f"compose-{service}") for service, part in OURS.items()),
    *(
        pytest.param(part["healthcheck"]["test"][1:], id=f"compose-{service}-health")
        for service, part in OURS.items()
        if "healthcheck" in part
    ),
    *(pytest.param(only(deployment).args, id=f"kubernetes-{named}") for named, deployment in DEPLOYMENTS.items()),
    *(
        pytest.param(probe.exec.command, id=f"kubernetes-{named}-probe-{at}")
        for named, deployment in DEPLOYMENTS.items()
        for at, probe in enumerate(only(deployment).probes)
        if probe.exec
    ),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one_that_its_program_takes(command: Sequence[str]) -> None:
    check(command)


@pytest.mark.parametrize(
    "command",
    [
        ["engagement-platform", "produce", "--folow"],
        ["dagster-daemon", "run", "--workspaces=x"],
        ["python", "-m", "engagement_platform.local.webserver", "--prot=3000"],
        ["python", "-m", "engagement_platform.local.connect", "--hots", "0.0.0.0"],
        ["python", "-m", "engagement_platform.local.nothing"],
    ],
)
def test_a_command_with_a_mistake_is_found(command: list[str]) -> None:
    with pytest.raises(AssertionError):
        check(command)


def accepted(variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> Settings:
    """The settings of a container with these variables."""
    for variable in [variable for variable in os.environ if variable.startswith(ENV_PREFIX)]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(folder)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv(f"{ENV_PREFIX}HOME", str(folder / "home"))
    return Settings()


GIVEN = [
    *(pytest.param(SERVICES[each]["environment"], id=f"compose-{each}") for each in ("spark-connect", "dagster-code")),
    pytest.param(given_in_kubernetes(only(DEPLOYMENTS["dagster-code"])), id="kubernetes-dagster-code"),
]


@pytest.mark.parametrize("variables", GIVEN)
def test_the_platform_takes_the_settings_and_nothing_of_it_is_local(
    variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = accepted(variables, monkeypatch, tmp_path)
    assert settings.lake.startswith("s3a://")
    assert settings.spark.endpoint == "sc://spark-connect:15002"
    assert settings.store_url.startswith("postgresql+psycopg2://platform:change-me")
    assert settings.kafka.bootstrap_servers
    assert settings.dagster.automation == "running"
    # boto3 does not read AWS_REGION, and delta-rs reads only that.
    assert variables["AWS_REGION"] == variables["AWS_DEFAULT_REGION"]


def test_spark_in_kubernetes_has_as_many_cores_as_its_pod_asks_for_and_a_heap_that_fits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    container = only(DEPLOYMENTS["spark-connect"])
    spark = accepted(given_in_kubernetes(container), monkeypatch, tmp_path).spark
    cores = int(container.resources.requests["cpu"])
    assert (spark.master, spark.shuffle_partitions, spark.default_parallelism) == (f"local[{cores}]", cores, cores)
    # Python workers need as much again.
    assert int(spark.driver_memory.rstrip("g")) * 2 <= int(container.resources.limits["memory"].removesuffix("Gi"))


# The image.


def test_the_image_copies_only_files_that_exist_and_that_the_build_is_sent() -> None:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*", "what is not named must stay out"
    sent = [rule[1:] for rule in rules if rule.startswith("!")]
    copied = [rest.split()[:-1] for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    sources = [source for line in copied for source in line]
    assert set(sources) == set(sent)
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_image_runs_as_a_user_that_is_not_root_by_number() -> None:
    users = [rest for word, rest in instructions() if word == "USER"]
    *_, (last, _), (command, _) = [each for each in instructions() if each[0] in ("USER", "CMD")]
    assert (last, command) == ("USER", "CMD"), "nothing runs after the user is set"
    user, _, group = users[-1].partition(":")
    assert int(user) > 0
    for deployment in DEPLOYMENTS.values():
        security = deployment.spec.template.spec.security_context
        assert (security.run_as_user, security.run_as_group) == (int(user), int(group))


def test_the_image_has_no_secret_and_downloads_what_the_lock_names_only() -> None:
    for word, rest in instructions():
        if word in ("ENV", "ARG"):
            assert not re.search(r"(?i)password|secret|token|access_key", rest)
        if word == "RUN" and "pip install" in rest:
            for call in re.findall(r"pip install [^&]*", rest):
                assert "--require-hashes" in call or "--no-index" in call
        assert not re.search(r"index-url|trusted-host|https?://", rest)


def test_a_lake_on_s3_finds_its_jars_in_the_image() -> None:
    [setup] = [rest for word, rest in instructions() if word == "RUN" and "engagement-platform setup" in rest]
    assert f"{ENV_PREFIX}LAKE_URI=s3a://" in setup
    [cache] = [rest for word, rest in instructions() if word == "ENV" and "JAR_CACHE" in rest]
    folder = re.findall(rf"{ENV_PREFIX}SPARK__JAR_CACHE=(\S+)", cache)[0]
    copied = [rest.split()[1:] for word, rest in instructions() if word == "COPY" and "--from=build" in rest]
    assert any(folder.startswith(f"{target}/") for _, target in copied)


def test_the_image_has_what_the_platform_needs_and_not_what_only_tests_need() -> None:
    part = part_of(LOCK, needed_by_the_platform((ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    pinned = set(re.findall(r"^([a-z0-9._-]+)==", part, re.MULTILINE))
    # Asked of what is installed here, which the lock's own notes play no part in.
    wanted, extras = set[tuple[str, frozenset[str]]](), [(PROJECT["name"], frozenset(EXTRAS))]
    while extras:
        package, chosen = extras.pop()
        for line in distribution(package).requires or ():
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": one}) for one in (*chosen, "")):
                one = (re.sub(r"[-_.]+", "-", needed.name).lower(), frozenset(needed.extras))
                if one not in wanted:
                    wanted.add(one)
                    extras.append(one)
    assert {package for package, _ in wanted} - pinned == set()
    assert pinned & {"pytest", "moto", "mypy", "playwright", "ruff", "hatchling"} == set()
    pins = re.split(r"^(?=[a-z0-9])", part, flags=re.MULTILINE)[1:]
    assert len(pins) == len(re.findall(r"^[a-z0-9._-]+==", part, re.MULTILINE))
    assert all("--hash=sha256:" in pin and pin in LOCK for pin in pins)


def test_a_part_of_the_lock_has_what_a_package_needs_and_refuses_what_is_not_locked() -> None:
    pinned = re.findall(r"^([a-z0-9._-]+)==", part_of(LOCK, ["Hatchling"]), re.MULTILINE)
    assert pinned == ["hatchling", "packaging", "pathspec", "pluggy", "trove-classifiers"]
    with pytest.raises(NotLocked, match="no left-pad"):
        part_of(LOCK, ["hatchling", "left-pad"])


# Dagster.


def test_the_instance_keeps_the_pools_and_the_queue_of_the_repository_and_adds_where_things_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parts = [ROOT / "dagster.yaml", DEPLOY / "dagster.yaml"]
    theirs, ours = map(read, parts)
    assert theirs.keys() & ours.keys() == set()
    text = "".join(part.read_text(encoding="utf-8") for part in parts)
    whole = yaml.safe_load(text)
    assert whole == {**theirs, **ours}
    # All but PostgreSQL, which would be asked for its tables at once.
    storage = whole.pop("storage")["postgres"]
    schema: Any = DagsterPostgresStorage.config_type()
    assert storage.keys() <= schema.keys()
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    monkeypatch.setenv("DAGSTER_LOGS_BUCKET", "engagement-lake")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert type(instance.compute_log_manager).__name__ == "S3ComputeLogManager"
        assert isinstance(instance.run_launcher, dg.DefaultRunLauncher), "only then the code server cancels runs"
        assert instance.storage_directory().startswith("/var/lib/engagement-platform/")


@pytest.mark.parametrize("service", ["dagster-code", "dagster-webserver", "dagster-daemon"])
def test_each_process_of_dagster_has_the_variables_that_its_instance_reads(service: str) -> None:
    named = set(re.findall(r"\{env: (\w+)\}", (DEPLOY / "dagster.yaml").read_text(encoding="utf-8")))
    assert len(named) == 5
    for given in (SERVICES[service]["environment"], given_in_kubernetes(only(DEPLOYMENTS[service]))):
        assert named - given.keys() == set()


def test_the_workspace_names_the_code_server_of_both() -> None:
    [entry] = read(DEPLOY / "workspace.yaml")["load_from"]
    server = entry["grpc_server"]
    assert server["location_name"] == LOCATION
    assert server["host"] in SERVICES
    assert f"--port={server['port']}" in SERVICES[server["host"]]["command"]
    [port] = all_of(Service)[server["host"]].spec.ports
    assert port.port == server["port"]
    assert f"--port={server['port']}" in only(DEPLOYMENTS[server["host"]]).args


# compose.yaml.


def test_every_published_port_is_bound_to_this_machine() -> None:
    published = [port for part in SERVICES.values() for port in part.get("ports", ())]
    assert published
    assert [port for port in published if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)] == []
    # The first has no users, the second runs what it is asked to.
    assert not {"15002", "4266"} & {port.rpartition(":")[2] for port in published}
    assert [service for service, part in SERVICES.items() if part.get("network_mode") == "host"] == []


@EVERY_SERVICE
def test_what_a_service_waits_for_can_come_true(service: str) -> None:
    for awaited, how in SERVICES[service].get("depends_on", {}).items():
        assert awaited in SERVICES
        other = SERVICES[awaited]
        if how["condition"] == "service_healthy":
            assert "healthcheck" in other
        else:
            assert how["condition"] == "service_completed_successfully"
            assert other["restart"] == "no", f"{awaited} would run for ever"


@EVERY_SERVICE
def test_each_service_that_goes_on_is_looked_after(service: str) -> None:
    part = SERVICES[service]
    if part["restart"] == "no":
        return
    assert part["restart"] == "unless-stopped"
    # Nothing waits for the producer of sample messages.
    assert ("healthcheck" in part) is (service != "traffic")


def test_every_volume_is_declared_and_used_and_every_mounted_file_exists() -> None:
    mounted = [mount.split(":")[0] for part in SERVICES.values() for mount in part.get("volumes", ())]
    files = [source for source in mounted if source.startswith(".")]
    assert {source for source in mounted if source not in files} == compose()["volumes"].keys()
    assert files
    assert [source for source in files if not (DEPLOY / source).is_file()] == []


def test_every_secret_comes_from_the_env_file_and_each_of_its_lines_is_used() -> None:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    assert set(VARIABLE.findall(text)) == EXAMPLE.keys()
    assert len(re.findall(r"(?<!\$)\$\{", text)) == len(VARIABLE.findall(text)), "each must refuse to be empty"
    getenv = re.findall(r"^\\getenv \w+ (\w+)$", (DEPLOY / "postgres.sql").read_text(encoding="utf-8"), re.MULTILINE)
    assert getenv
    assert set(getenv) <= SERVICES["postgres"]["environment"].keys()


def test_the_topics_and_the_bucket_that_are_made_are_those_that_are_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    variables = SERVICES["dagster-code"]["environment"]
    settings = accepted(variables, monkeypatch, tmp_path)
    [made] = re.findall(r"for topic in ([^;]+);", SERVICES["topics"]["command"][0])
    assert made.split() == topics(settings, declarations(settings))
    bucket = settings.lake.removeprefix("s3a://").partition("/")[0]
    assert bucket == variables["DAGSTER_LOGS_BUCKET"]
    assert f'create_bucket(Bucket="{bucket}")' in SERVICES["bucket"]["command"][2]


def test_addresses_name_services_and_their_ports() -> None:
    listeners = SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    variables = SERVICES["dagster-code"]["environment"]
    assert f"//{variables[f'{ENV_PREFIX}KAFKA__BOOTSTRAP_SERVERS']}," in listeners
    for address in (
        variables[f"{ENV_PREFIX}SPARK__REMOTE"],
        variables["AWS_ENDPOINT_URL"],
        f"x://{variables['DAGSTER_PG_HOST']}",
        variables[f"{ENV_PREFIX}STORES__URL"].replace("//platform:change-me-not-a-password-2@", "//"),
    ):
        assert re.findall(r"://([a-z-]+)", address)[0] in SERVICES


@pytest.mark.parametrize("service", OURS)
def test_no_container_of_the_platform_may_get_more_rights(service: str) -> None:
    part = OURS[service]
    assert part["cap_drop"] == ["ALL"]
    assert part["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "user", "pid", "devices"} & part.keys()
