"""Where load may go, and whether a server that can answer is there."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import httpx

from benchmarks.cannot_run import CannotRun

HEALTH_TIMEOUT_S = 10.0


def check_address(url: str, *, allow_remote: bool) -> str:
    """The URL without its end slash; raises CannotRun before anything is sent."""
    parts = urlsplit(url)
    try:
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        has_port = False
    if parts.scheme != "http" or not parts.hostname or not has_port or parts.path not in ("", "/"):
        raise CannotRun(f"--url {url} is not of the form http://host:port.")
    if not allow_remote and not _is_loopback(parts.hostname):
        raise CannotRun(
            f"{parts.hostname} is not a loopback address. "
            "Give --allow-remote if that server is yours to load."
        )
    return f"http://{parts.netloc}"


def check_health(url: str, health_path: str) -> None:
    """Raises CannotRun unless the server says that it takes requests."""
    try:
        answer = httpx.get(url + health_path, timeout=HEALTH_TIMEOUT_S, trust_env=False)
    except httpx.TransportError as err:
        raise CannotRun(f"Nothing answers at {url}: {err or type(err).__name__}.") from err
    # Cog answers 200 in every state and says which in the body; Triton's body is empty.
    state = answer.json().get("status", "READY") if answer.content.startswith(b"{") else "READY"
    if answer.status_code != httpx.codes.OK or state not in ("READY", "BUSY"):
        raise CannotRun(f"{url} is not ready: HTTP {answer.status_code}, {state}.")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
