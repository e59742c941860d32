"""The Kubernetes objects of deploy/ are valid, fit together and run nothing as root. Starts nothing."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from engagement_platform.settings import ENV_PREFIX
from engagement_platform_tests.docs.deploy_files import (
    DEPLOYMENTS,
    KUBERNETES,
    MANIFESTS,
    all_of,
    documents,
    given_in_kubernetes,
    labels,
    only,
    read,
)
from engagement_platform_tests.docs.kubernetes_objects import (
    OBJECT,
    Claim,
    ConfigMap,
    Deployment,
    Exec,
    NetworkPolicy,
    Service,
    ServiceAccount,
)

EVERY_DEPLOYMENT = pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=list(DEPLOYMENTS))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"kind": "Deploymnt"}, "does not match any of the expected tags"),
        ({"kind": "Service", "apiVersion": "v2"}, "Input should be 'v1'"),
        ({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"a": 1}}, "valid string"),
        ({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "a", "lables": {}}}, "Extra inputs"),
    ],
)
def test_an_object_that_kubernetes_would_refuse_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        OBJECT.validate_python(wrong)


def test_kustomize_applies_every_manifest_into_one_namespace() -> None:
    whole = read(KUBERNETES / "kustomization.yaml")
    assert sorted(whole["resources"]) == [path.name for path in MANIFESTS]
    for path, document in documents():
        named = document["metadata"]["name" if document["kind"] == "Namespace" else "namespace"]
        assert named == whole["namespace"], path


@EVERY_DEPLOYMENT
def test_a_deployment_selects_its_own_pods_and_no_others(deployment: Deployment) -> None:
    chosen = deployment.spec.selector.match_labels
    matching = [named for named, other in DEPLOYMENTS.items() if chosen.items() <= labels(other).items()]
    assert matching == [deployment.metadata.name]


@pytest.mark.parametrize("single", ["spark-connect", "dagster-code", "dagster-daemon"])
def test_what_must_never_be_two_is_one_also_while_it_is_replaced(single: str) -> None:
    spec = DEPLOYMENTS[single].spec
    assert (spec.replicas, spec.strategy.type) == (1, "Recreate")


@EVERY_DEPLOYMENT
def test_no_container_runs_as_root_or_may_get_more_rights(deployment: Deployment) -> None:
    pod = deployment.spec.template.spec
    assert pod.security_context.run_as_non_root
    for container in pod.containers:
        own = container.security_context
        assert not own.allow_privilege_escalation
        assert not own.privileged
        assert (own.run_as_user, own.run_as_non_root) == (None, None), "that of the pod holds"
        assert (own.capabilities.drop, own.capabilities.add) == (["ALL"], [])
    assert all_of(ServiceAccount)[pod.service_account_name].automount_service_account_token is False


@EVERY_DEPLOYMENT
def test_kubernetes_adds_no_variables_that_the_platform_would_refuse(deployment: Deployment) -> None:
    assert deployment.spec.template.spec.enable_service_links is False


@EVERY_DEPLOYMENT
def test_a_probe_asks_one_thing_at_a_port_that_exists(deployment: Deployment) -> None:
    container = only(deployment)
    names, numbers = {port.name for port in container.ports}, {port.container_port for port in container.ports}
    assert container.probes
    for probe in container.probes:
        [way] = probe.asks
        if not isinstance(way, Exec):
            assert way.port in names | numbers


def test_the_web_server_is_asked_by_a_name_that_it_answers_to() -> None:
    for probe in only(DEPLOYMENTS["dagster-webserver"]).probes:
        assert probe.http_get is not None
        assert [(header.name, header.value) for header in probe.http_get.http_headers] == [("Host", "127.0.0.1")]


@EVERY_DEPLOYMENT
def test_a_container_asks_for_what_it_needs_and_mounts_what_there_is(deployment: Deployment) -> None:
    pod, container = deployment.spec.template.spec, only(deployment)
    assert container.resources.requests.keys() == {"cpu", "memory"}
    assert "memory" in container.resources.limits
    volumes = {volume.name for volume in pod.volumes}
    assert {mount.name for mount in container.volume_mounts} == volumes
    claimed = {volume.persistent_volume_claim.claim_name for volume in pod.volumes if volume.persistent_volume_claim}
    assert claimed <= all_of(Claim).keys()
    if volumes:
        assert pod.security_context.fs_group == pod.security_context.run_as_user, "a volume is root's otherwise"


@EVERY_DEPLOYMENT
def test_settings_come_from_maps_that_exist_and_secrets_from_files_with_an_example(deployment: Deployment) -> None:
    variables = given_in_kubernetes(only(deployment))
    assert variables
    maps = [value for one in all_of(ConfigMap).values() for value in one.data.values()]
    assert not [value for value in maps if "password" in value.lower()]


def test_a_service_leads_to_pods_and_to_a_port_of_theirs() -> None:
    found = all_of(Service)
    assert found.keys() == {"spark-connect", "dagster-code", "dagster-webserver"}
    for service in found.values():
        [pods] = [
            only(other) for other in DEPLOYMENTS.values() if service.spec.selector.items() <= labels(other).items()
        ]
        for port in service.spec.ports:
            assert port.target_port in {each.name for each in pods.ports}
            assert port.port in {each.container_port for each in pods.ports}
    remote = all_of(ConfigMap)["platform-settings"].data[f"{ENV_PREFIX}SPARK__REMOTE"]
    [port] = found["spark-connect"].spec.ports
    assert remote == f"sc://spark-connect:{port.port}"


def test_every_port_that_has_no_login_is_inside_a_network_policy() -> None:
    closed = set()
    for policy in all_of(NetworkPolicy).values():
        assert policy.spec.policy_types == ["Ingress"]
        chosen = policy.spec.pod_selector.match_labels
        [container] = [only(each) for each in DEPLOYMENTS.values() if chosen.items() <= labels(each).items()]
        closed.add(container.name)
        for rule in policy.spec.ingress:
            for peer in rule.from_:
                wanted = peer.pod_selector.match_labels
                assert any(wanted.items() <= labels(each).items() for each in DEPLOYMENTS.values())
            assert {port.port for port in rule.ports} == {port.name for port in container.ports}
    assert closed == {only(each).name for each in DEPLOYMENTS.values() if only(each).ports}
