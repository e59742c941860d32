"""The part of Kubernetes' schema that the manifests use, strictly: a field that is not here is refused, as is a type.

CI asks the whole schema (kubeconform); this asks without a network. No assertions here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter
from pydantic.alias_generators import to_camel

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
PortName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=15)]
Port = Annotated[int, Field(strict=True, ge=1, le=65535)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Quantity = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)?(m|Ki|Mi|Gi|Ti)?$")]
Strings = dict[str, Annotated[str, Field(strict=True)]]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class Metadata(Part):
    name: Name
    namespace: Name | None = None
    labels: Strings = {}
    annotations: Strings = {}


class Selector(Part):
    match_labels: Strings


class Named(Part):
    name: Name
    optional: bool = False


class EnvFrom(Part):
    config_map_ref: Named | None = None
    secret_ref: Named | None = None


class ContainerPort(Part):
    name: PortName
    container_port: Port
    protocol: Literal["TCP", "UDP"] = "TCP"


class TcpSocket(Part):
    port: PortName | Port


class Header(Part):
    name: str
    value: Annotated[str, Field(strict=True)]


class HttpGet(Part):
    path: str
    port: PortName | Port
    http_headers: list[Header] = []


class Grpc(Part):
    port: Port  # Kubernetes takes no name here
    service: str = ""


class Exec(Part):
    command: list[Annotated[str, Field(strict=True)]]


class Probe(Part):
    tcp_socket: TcpSocket | None = None
    http_get: HttpGet | None = None
    grpc: Grpc | None = None
    exec: Exec | None = None
    period_seconds: Positive = 10
    timeout_seconds: Positive = 1
    failure_threshold: Positive = 3
    initial_delay_seconds: int = 0

    @property
    def asks(self) -> list[TcpSocket | HttpGet | Grpc | Exec]:
        """What it does; Kubernetes wants exactly one."""
        return [way for way in (self.tcp_socket, self.http_get, self.grpc, self.exec) if way is not None]


class Capabilities(Part):
    drop: list[str] = []
    add: list[str] = []


class ContainerSecurity(Part):
    allow_privilege_escalation: bool
    capabilities: Capabilities
    run_as_user: int | None = None
    run_as_non_root: bool | None = None
    privileged: bool = False


class Resources(Part):
    requests: dict[Literal["cpu", "memory", "storage"], Quantity]
    limits: dict[Literal["cpu", "memory"], Quantity] = {}


class VolumeMount(Part):
    name: Name
    mount_path: Annotated[str, StringConstraints(pattern=r"^/")]
    read_only: bool = False


class Container(Part):
    name: Name
    image: str
    command: list[str] = []
    args: list[Annotated[str, Field(strict=True)]]
    env_from: list[EnvFrom]
    ports: list[ContainerPort] = []
    startup_probe: Probe | None = None
    readiness_probe: Probe | None = None
    liveness_probe: Probe
    resources: Resources
    security_context: ContainerSecurity
    volume_mounts: list[VolumeMount] = []

    @property
    def probes(self) -> list[Probe]:
        """Those that it has."""
        return [probe for probe in (self.startup_probe, self.readiness_probe, self.liveness_probe) if probe]


class Seccomp(Part):
    type: Literal["RuntimeDefault"]


class PodSecurity(Part):
    run_as_non_root: bool
    run_as_user: Positive
    run_as_group: Positive
    fs_group: Positive | None = None
    fs_group_change_policy: Literal["OnRootMismatch", "Always"] = "Always"
    seccomp_profile: Seccomp


class EmptyDir(Part):
    size_limit: Quantity | None = None


class ClaimSource(Part):
    claim_name: Name


class Volume(Part):
    name: Name
    empty_dir: EmptyDir | None = None
    persistent_volume_claim: ClaimSource | None = None


class PodSpec(Part):
    service_account_name: Name
    enable_service_links: bool
    security_context: PodSecurity
    containers: Annotated[list[Container], Field(min_length=1)]
    volumes: list[Volume] = []
    termination_grace_period_seconds: Positive = 30


class Labels(Part):
    labels: Strings


class Template(Part):
    metadata: Labels
    spec: PodSpec


class Strategy(Part):
    type: Literal["Recreate", "RollingUpdate"]


class DeploymentSpec(Part):
    replicas: Positive
    strategy: Strategy = Strategy(type="RollingUpdate")
    selector: Selector
    template: Template


class Deployment(Part):
    api_version: Literal["apps/v1"]
    kind: Literal["Deployment"]
    metadata: Metadata
    spec: DeploymentSpec


class ServicePort(Part):
    name: PortName
    port: Port
    target_port: PortName | Port
    protocol: Literal["TCP", "UDP"] = "TCP"


class ServiceSpec(Part):
    selector: Strings
    ports: list[ServicePort]


class Service(Part):
    api_version: Literal["v1"]
    kind: Literal["Service"]
    metadata: Metadata
    spec: ServiceSpec


class ConfigMap(Part):
    api_version: Literal["v1"]
    kind: Literal["ConfigMap"]
    metadata: Metadata
    data: Strings


class Namespace(Part):
    api_version: Literal["v1"]
    kind: Literal["Namespace"]
    metadata: Metadata


class ServiceAccount(Part):
    api_version: Literal["v1"]
    kind: Literal["ServiceAccount"]
    metadata: Metadata
    automount_service_account_token: bool


class ClaimSpec(Part):
    access_modes: list[Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"]]
    resources: Resources


class Claim(Part):
    api_version: Literal["v1"]
    kind: Literal["PersistentVolumeClaim"]
    metadata: Metadata
    spec: ClaimSpec


class Peer(Part):
    pod_selector: Selector


class PolicyPort(Part):
    protocol: Literal["TCP", "UDP"]
    port: PortName | Port


class Ingress(Part):
    # "from" is a word of Python's.
    from_: Annotated[list[Peer], Field(alias="from", min_length=1)]
    ports: Annotated[list[PolicyPort], Field(min_length=1)]


class PolicySpec(Part):
    pod_selector: Selector
    policy_types: list[Literal["Ingress", "Egress"]]
    ingress: list[Ingress]


class NetworkPolicy(Part):
    api_version: Literal["networking.k8s.io/v1"]
    kind: Literal["NetworkPolicy"]
    metadata: Metadata
    spec: PolicySpec


AnyObject = Deployment | Service | ConfigMap | Namespace | ServiceAccount | Claim | NetworkPolicy
OBJECT: TypeAdapter[AnyObject] = TypeAdapter(Annotated[AnyObject, Field(discriminator="kind")])
