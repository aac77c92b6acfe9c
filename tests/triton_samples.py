"""A tiny Triton model and servers around it, for the tests that need a real tritonserver."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cog_triton import triton_installation
from cog_triton.server import TritonServer
from cog_triton.settings import TritonSettings

CONFIG = """
name: "tiny"
backend: "python"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""

MODEL = """
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    def execute(self, requests):
        inputs = [pb.get_input_tensor_by_name(request, "x") for request in requests]
        return [pb.InferenceResponse([pb.Tensor("y", x.as_numpy())]) for x in inputs]
"""


def free_ports(number: int) -> list[int]:
    """Ports that nothing listens on now, all different."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [bound.getsockname()[1] for bound in sockets]
    finally:
        for bound in sockets:
            bound.close()


def triton_settings(**changes: object) -> TritonSettings:
    """Settings on free ports of the loopback interface."""
    http, grpc, metrics = free_ports(3)
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    return TritonSettings.model_validate({**ports, **changes})


def write_tiny_repository(directory: Path, initialize: str = "pass") -> Path:
    """A repository of one model that gives its input back; `initialize` is run on load."""
    (directory / "tiny" / "1").mkdir(parents=True)
    (directory / "tiny" / "config.pbtxt").write_text(CONFIG)
    (directory / "tiny" / "1" / "model.py").write_text(MODEL.format(initialize=initialize))
    return directory


def start(directory: Path, repository: Path, triton: TritonSettings | None = None) -> TritonServer:
    """Starts the server of this machine, with its run directory in `directory`."""
    triton = triton or triton_settings()
    installation = triton_installation.find(triton.tritonserver, directory)
    return TritonServer.start(triton, installation, repository, directory / "run")


@contextmanager
def running(
    directory: Path, initialize: str = "pass", triton: TritonSettings | None = None
) -> Iterator[TritonServer]:
    """A server that was started on the tiny model, killed at the end whatever happened."""
    server = start(directory, write_tiny_repository(directory / "repository", initialize), triton)
    try:
        yield server
    finally:
        server.stop(0)
