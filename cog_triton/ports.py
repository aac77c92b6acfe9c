"""Whether ports are free, before a server is started that would fail on them later."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping

from cog_triton.errors import PortInUse, SettingsError


def check_free(ports: Mapping[str, tuple[str, int]]) -> None:
    """Binds each address once and lets go of it.

    `ports` maps the name of a setting to its host and port. Raises PortInUse that names
    port and setting if another program listens there or two settings share it, and
    SettingsError if this machine or user cannot bind it at all.
    """
    held: list[socket.socket] = []
    try:
        for setting, (host, port) in ports.items():
            held.append(_bind(setting, host, port))
    finally:
        for bound in held:
            bound.close()


def _bind(setting: str, host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
    except OSError as err:
        raise SettingsError(f"{setting}: {host} cannot be used here: {err}") from err
    try:
        # As Triton does: what a dead connection left behind is not in the way.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        # Two sockets may share an address that both may reuse; only one can listen.
        bound.listen(1)
    except OSError as err:
        bound.close()
        if err.errno == errno.EADDRINUSE:
            raise PortInUse(f"Port {port} on {host} ({setting}) is taken.") from err
        raise SettingsError(f"{setting}: {host}:{port} cannot be bound: {err}") from err
    return bound
