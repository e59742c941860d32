"""The files of deploy/ as the tests read them: image, compose file, Kubernetes objects. No assertions here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from engagement_platform_tests.docs.kubernetes_objects import OBJECT, AnyObject, ConfigMap, Container, Deployment
from engagement_platform_tests.docs.pages import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and not path.name.endswith(".env"))
PROJECT: Mapping[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMAGE = f"{PROJECT['name']}:{PROJECT['version']}"
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+):\?[^}]*\}")
"""Of compose.yaml; one that is empty is refused."""

Kind = TypeVar("Kind", bound=AnyObject)


def read(path: Path) -> Any:
    """A file of one YAML document."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def env_file(path: Path) -> dict[str, str]:
    """The variables of a file of KEY=VALUE lines."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {line.split("=", 1)[0]: line.split("=", 1)[1] for line in lines if line and not line.startswith("#")}


def instructions() -> list[tuple[str, str]]:
    """(instruction, rest) of the Dockerfile, lines joined."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in joined.splitlines()]


EXAMPLE = env_file(DEPLOY / ".env.example")


def compose() -> dict[str, Any]:
    """compose.yaml with the variables of the example, as `docker compose` reads it."""
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(VARIABLE.sub(lambda found: EXAMPLE[found.group(1)], text)))


SERVICES: Mapping[str, Any] = compose()["services"]
OURS = {service: part for service, part in SERVICES.items() if part["image"] == IMAGE}
MANIFESTS = sorted(path for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml")


def documents() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each object of the manifests, and its file."""
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield path, document


OBJECTS = [OBJECT.validate_python(document) for _, document in documents()]


def all_of(kind: type[Kind]) -> dict[str, Kind]:
    """The objects of a kind, by name."""
    return {one.metadata.name: one for one in OBJECTS if isinstance(one, kind)}


DEPLOYMENTS = all_of(Deployment)


def only(deployment: Deployment) -> Container:
    """The container of a deployment."""
    [container] = deployment.spec.template.spec.containers
    return container


def labels(deployment: Deployment) -> dict[str, str]:
    """Those of its pods."""
    return deployment.spec.template.metadata.labels


def given_in_kubernetes(container: Container) -> dict[str, str]:
    """The variables of a container; those of its secrets are from the examples."""
    maps, found = all_of(ConfigMap), dict[str, str]()
    for source in container.env_from:
        if source.config_map_ref is not None:
            found |= maps[source.config_map_ref.name].data
        elif source.secret_ref is not None and not source.secret_ref.optional:
            found |= env_file(KUBERNETES / f"{source.secret_ref.name}.env.example")
    return found
