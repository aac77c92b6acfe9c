"""Where the benchmark may send load."""

from __future__ import annotations

import pytest

from benchmarks.cannot_run import CannotRun
from benchmarks.load.address import check_address


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1:8000",
        "http://example.com",
        "http://0.0.0.0:8000",
        "http://localhost.example.com:8000",
        "http://127.0.0.1@example.com",
        "http://[2001:db8::1]:8000",
    ],
)
def test_another_machine_has_to_be_allowed(url: str) -> None:
    """No load leaves this machine unless the operator says so."""
    with pytest.raises(CannotRun, match=r"not a loopback address.*--allow-remote"):
        check_address(url, allow_remote=False)
    assert check_address(url, allow_remote=True).startswith("http://")


@pytest.mark.parametrize(
    "url", ["https://localhost:1", "localhost:8000", "http://", "http://localhost:99999", "", "x"]
)
def test_what_is_no_address(url: str) -> None:
    """Anything but http://host:port is refused, in a line that shows it."""
    with pytest.raises(CannotRun, match="is not of the form"):
        check_address(url, allow_remote=True)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8000", "http://localhost:5000/", "http://[::1]:80", "http://127.1.2.3"],
)
def test_loopback_is_allowed(url: str) -> None:
    """Every loopback address is, with or without a slash at its end."""
    assert check_address(url, allow_remote=False) == url.rstrip("/")
