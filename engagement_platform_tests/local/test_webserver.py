"""The UI's door: a real `dagster-webserver` as `up` starts it, asked as browsers and as pages of other sites ask."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engagement_platform.local.orchestrator import WEBSERVER, dagster_children
from engagement_platform.local.ports import free_ports
from engagement_platform.local.process import Supervisor
from engagement_platform.settings import Settings

QUERY = "{ version }"
JSON = {"Content-Type": "application/json"}
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "graphql-ws",
}


@contextmanager
def served(home: Path, *more: str) -> Iterator[int]:
    """The port of a webserver. more: arguments."""
    ui, code = free_ports(2)
    settings = Settings.model_validate({"home": home, "embedded": {"ui_port": ui, "code_port": code}})
    [server] = [child for child in dagster_children(settings, {}, ()) if child.name == WEBSERVER]
    server.after, server.command = (), [*server.command, *more]
    (home / "dagster" / "workspace.yaml").write_text("load_from: []\n")
    with Supervisor(Path(home) / "logs") as supervisor:
        supervisor.start(server)
        supervisor.wait_ready(120)
        yield ui


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with served(tmp_path_factory.mktemp("home")) as ui:
        yield ui


def asked(port: int, method: str, path: str, headers: dict[str, str], body: str = "") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, body or None, headers)
    answer = connection.getresponse()
    # After a handshake there is no end to read up to.
    text = "" if answer.status == 101 else answer.read().decode()
    connection.close()
    return answer.status, text


def test_pages_of_the_ui_and_programs_are_answered(port: int) -> None:
    own = {"Origin": f"http://127.0.0.1:{port}"}
    body = json.dumps({"query": QUERY})
    for headers in (JSON, JSON | own, {"Content-Type": "application/json; charset=utf-8"}):
        status, text = asked(port, "POST", "/graphql", headers, body)
        assert status == 200
        assert json.loads(text)["data"]["version"]
    for host in (f"localhost:{port}", "127.0.0.1:9", "[::1]:80"):
        assert asked(port, "GET", "/runs", {"Host": host})[0] == 200
    for headers in (own, {}, {"Host": "localhost:3000", "Origin": "http://localhost:3000"}):
        assert asked(port, "GET", "/graphql", HANDSHAKE | headers)[0] == 101


@pytest.mark.parametrize(
    ("method", "path", "headers", "body"),
    [
        ("GET", f"/graphql?query={QUERY.replace(' ', '%20')}", {}, ""),
        ("GET", f"/graphql/?query={QUERY.replace(' ', '%20')}", {}, ""),
        ("GET", f"/prefix/graphql?query={QUERY.replace(' ', '%20')}", {}, ""),
        ("GET", f"/graphql%0A?query={QUERY.replace(' ', '%20')}", {}, ""),
        ("GET", f"/prefix/graphql%0a?query={QUERY.replace(' ', '%20')}", {}, ""),
        ("POST", "/pre/fix/graphql/", {"Content-Type": "text/plain"}, json.dumps({"query": QUERY})),
        ("POST", "/graphql", {"Content-Type": "application/x-www-form-urlencoded"}, f"query={QUERY}"),
        ("POST", "/graphql", {"Content-Type": "application/graphql"}, QUERY),
        ("POST", "/graphql", {"Content-Type": "text/plain; application/json"}, json.dumps({"query": QUERY})),
        ("POST", "/graphql", JSON | {"Host": "rebound.example:3000"}, json.dumps({"query": QUERY})),
        ("POST", "/graphql", JSON | {"Host": "localhost.rebound.example"}, json.dumps({"query": QUERY})),
        ("POST", "/graphql", JSON | {"Origin": "http://evil.example"}, json.dumps({"query": QUERY})),
        ("POST", "/graphql", JSON | {"Origin": "http://127.0.0.1:8000"}, json.dumps({"query": QUERY})),
        ("POST", "/graphql", JSON | {"Origin": "null"}, json.dumps({"query": QUERY})),
        ("POST", "/report_asset_materialization/a", {"Origin": "http://evil.example"}, ""),
        ("GET", "/runs", {"Host": "rebound.example"}, ""),
        ("GET", "/logs/any", {"Host": "rebound.example"}, ""),
        ("GET", "/graphql", HANDSHAKE | {"Origin": "http://evil.example"}, ""),
        ("GET", "/graphql", HANDSHAKE | {"Host": "rebound.example"}, ""),
    ],
)
def test_what_a_page_of_another_site_can_send_is_refused_with_one_sentence(
    port: int, method: str, path: str, headers: dict[str, str], body: str
) -> None:
    status, text = asked(port, method, path, headers, body)
    assert status == 403
    assert "Upgrade" in headers or text.strip().count(".") >= 1
    assert len(text.splitlines()) <= 1


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [("/runs", {}, 200), ("/server_info", {}, 200), ("/runs", {"Host": "a.b"}, 403)],
)
def test_no_answer_can_be_shown_in_a_frame(port: int, path: str, headers: dict[str, str], expected: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    connection.close()
    assert (answer.status, answer.headers.get_all("X-Frame-Options")) == (expected, ["DENY"])
    *dagsters, ours = answer.headers.get_all("Content-Security-Policy", [])
    assert ours == "frame-ancestors 'none'"
    assert len(dagsters) == ((path, expected) == ("/runs", 200)), "that of the UI's own pages stays"


def test_a_webserver_that_is_for_reading_only_lets_nobody_launch_or_change_anything(tmp_path: Path) -> None:
    """Behind the same door, as the page for production has it."""
    query = json.dumps({"query": "{ permissions { permission value } }"})
    with served(tmp_path, "--read-only") as port:
        status, text = asked(port, "POST", "/graphql", JSON, query)
    permissions = {each["permission"]: each["value"] for each in json.loads(text)["data"]["permissions"]}
    assert (status, permissions["launch_pipeline_execution"], set(permissions.values())) == (200, False, {False})
