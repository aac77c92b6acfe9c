"""What others on the machine and the network can reach of a deployment: as little as possible."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from cog_triton import run_directory
from cog_triton.child_session import session_members
from cog_triton.errors import DeploymentError
from cog_triton.server import TritonServer
from cog_triton.settings import Settings, TritonSettings
from tests.triton_samples import running, triton_settings

LOOPBACK = "0100007F"
# gRPC's socket is one of IPv6 that is bound to the same address.
MAPPED = "0000000000000000FFFF0000"
LISTENING = "0A"
READY_S = 30


@pytest.fixture(scope="module")
def triton() -> TritonSettings:
    return triton_settings()


@pytest.fixture(scope="module")
async def server(triton: TritonSettings, tmp_path_factory: pytest.TempPathFactory) -> TritonServer:  # type: ignore[misc]
    with running(tmp_path_factory.mktemp("exposure"), triton=triton) as started:
        await started.wait_ready(READY_S)
        yield started


def listening(pid: int) -> Iterator[str]:
    """The addresses, as /proc/net/tcp writes them, on which a process listens."""
    links = (os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir())
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in inodes:
                yield fields[1].removeprefix(MAPPED)


def test_every_port_is_bound_to_the_loopback_address(
    server: TritonServer, triton: TritonSettings
) -> None:
    """HTTP, gRPC and metrics, and nothing else, of any process of the server."""
    found = {address for pid in session_members(server.pid) for address in listening(pid)}
    ports = (triton.http_port, triton.grpc_port, triton.metrics_port)
    assert found == {f"{LOOPBACK}:{port:04X}" for port in ports}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v2/repository/index", {}),
        ("POST", "/v2/repository/models/tiny/load", {}),
        ("POST", "/v2/repository/models/tiny/unload", {}),
        ("GET", "/v2/trace/setting", None),
        ("POST", "/v2/trace/setting", {"trace_file": "/tmp/trace", "trace_level": ["TIMESTAMPS"]}),
        ("POST", "/v2/models/tiny/trace/setting", {"trace_level": ["TIMESTAMPS"]}),
        ("GET", "/v2/logging", None),
        ("POST", "/v2/logging", {"log_file": "/tmp/log"}),
        ("GET", "/v2/systemsharedmemory/status", None),
        (
            "POST",
            "/v2/systemsharedmemory/region/x/register",
            {"key": "/x", "offset": 0, "byte_size": 8},
        ),
    ],
)
def test_what_changes_the_server_is_closed_over_http(
    server: TritonServer, method: str, path: str, body: dict[str, Any] | None
) -> None:
    """Models, traces, log files and shared memory are nobody's to set from outside."""
    answer = httpx.request(method, server.http_url + path, json=body, trust_env=False)
    assert answer.status_code == httpx.codes.FORBIDDEN
    assert "restricted" in answer.text


def test_what_changes_the_server_is_closed_over_grpc(
    server: TritonServer, triton: TritonSettings
) -> None:
    """The same groups as over HTTP."""
    del server
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{triton.grpc_port}") as client:
        assert client.is_server_ready()
        for call in (
            client.get_model_repository_index,
            lambda: client.unload_model("tiny"),
            client.get_trace_settings,
            lambda: client.update_log_settings({"log_file": "/tmp/log"}),
            client.get_system_shared_memory_status,
        ):
            with pytest.raises(InferenceServerException, match="restricted"):
                call()


def test_what_predictions_and_operators_need_is_open(server: TritonServer) -> None:
    """Health, metadata, configuration and statistics answer, and so does the model."""
    with httpx.Client(base_url=server.http_url, trust_env=False) as http:
        for path in ("/v2", "/v2/health/ready", "/v2/models/tiny/config", "/v2/models/tiny/stats"):
            assert http.get(path).status_code == httpx.codes.OK
        body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "INT32", "data": [3]}]}
        answer = http.post("/v2/models/tiny/infer", json=body)
        assert answer.json()["outputs"][0]["data"] == [3]


# The run directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the default run directory lies, in a temporary directory of this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"cog-triton-{os.getuid()}"


def test_a_symbolic_link_in_place_of_the_run_directory_is_an_error(place: Path) -> None:
    """Somebody else may have put it there, to have our files written elsewhere."""
    (place.parent / "elsewhere").mkdir()
    place.symlink_to(place.parent / "elsewhere")
    with pytest.raises(DeploymentError, match=rf"{place} is a symbolic link"):
        run_directory.prepare(Settings())
    place.unlink()
    place.mkdir()
    (place / "8000").symlink_to(place.parent / "elsewhere")
    with pytest.raises(DeploymentError, match=rf"{place}/8000 is a symbolic link"):
        run_directory.prepare(Settings())
    assert list((place.parent / "elsewhere").iterdir()) == []


def test_a_run_directory_of_another_user_is_an_error(place: Path) -> None:
    """Its owner could change what is run from there."""
    if os.getuid() == 0:
        place.mkdir()
        os.chown(place, 65534, 65534)
        foreign = Settings()
    else:
        foreign = Settings(run_dir=Path("/usr"))
    with pytest.raises(DeploymentError, match=r"belongs to user \d+, not to this one"):
        run_directory.prepare(foreign)


def test_a_run_directory_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    """It is named."""
    (tmp_path / "run").write_text("")
    with pytest.raises(DeploymentError, match=r"run directory .*/run cannot be used"):
        run_directory.prepare(Settings(run_dir=tmp_path / "run"))


def test_the_run_directory_is_closed_to_others(place: Path, tmp_path: Path) -> None:
    """Both levels of the default and a directory that is set, new or there before."""
    assert run_directory.prepare(Settings()) == place / "8000"
    assert mode(place) == mode(place / "8000") == 0o700
    own = tmp_path / "own"
    own.mkdir(mode=0o755)
    own.chmod(0o755)
    assert run_directory.prepare(Settings(run_dir=own)) == own
    assert mode(own) == 0o700
    assert mode(run_directory.prepare(Settings(run_dir=tmp_path / "a" / "new"))) == 0o700
