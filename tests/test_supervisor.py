"""The rules of the supervision, without a server: restarts, progress, processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cog_triton.child_session import session_members
from cog_triton.progress_watchdog import Passage, ProgressWatchdog
from cog_triton.restart_policy import RestartPolicy
from cog_triton.session_watch import SessionWatch
from cog_triton.settings import Settings, SupervisionSettings, changed

# Restarts


def policy(**limits: float) -> RestartPolicy:
    values = {"max_restarts": 5, "restart_window_s": 100.0, "restart_backoff_s": 1.0, **limits}
    return RestartPolicy(SupervisionSettings.model_validate(values))


def test_restarts_come_later_each_time_and_then_no_more() -> None:
    """At once, then 1, 2, 4 … seconds, bounded; the failure after the last restart is final."""
    rule = policy(max_restart_backoff_s=5.0)
    delays = [rule.after_failure(served_s) for served_s in (50.0, 1.0, 0.0, 0.0, 0.0, 0.0)]
    assert delays == [0.0, 1.0, 2.0, 4.0, 5.0, None]


def test_a_server_that_held_out_starts_afresh() -> None:
    """Failures from before the window are forgotten."""
    rule = policy(max_restarts=2)
    assert [rule.after_failure(served_s) for served_s in (0.0, 1.0)] == [0.0, 1.0]
    assert rule.after_failure(100.0) == 0.0
    assert [rule.after_failure(served_s) for served_s in (1.0, 1.0)] == [1.0, None]


def test_no_restarts_can_be_asked_for() -> None:
    """The first failure is then the last."""
    assert policy(max_restarts=0).after_failure(0.0) is None


@given(
    served=st.lists(st.floats(0, 1000), min_size=1, max_size=60),
    max_restarts=st.integers(0, 2000),
    backoff_s=st.floats(0, 1e6),
)
def test_the_delay_is_bounded_and_restarts_too(
    served: list[float], max_restarts: int, backoff_s: float
) -> None:
    """However a server fails: no delay above the bound, no window with more restarts than set."""
    rule = policy(max_restarts=max_restarts, restart_backoff_s=backoff_s)
    now, restarts = 0.0, []
    for served_s in served:
        now += served_s
        delay = rule.after_failure(served_s)
        if delay is None:
            break
        assert 0.0 <= delay <= 30.0
        restarts.append(now)
        assert len([at for at in restarts if at > now - 100.0]) <= max_restarts


# Progress


def watchdog() -> ProgressWatchdog:
    return ProgressWatchdog(stall_timeout_s=10.0, first_token_timeout_s=50.0)


def test_a_server_without_requests_is_never_stalled() -> None:
    """Idle is not stalled, before the first request and after the last."""
    dog = watchdog()
    assert dog.stalled_for_s(1e6) is None
    passage = dog.begin(1e6)
    dog.token(passage, 1e6)
    dog.end(passage)
    assert dog.stalled_for_s(2e6) is None


def test_silence_is_a_stall_when_somebody_waits_for_the_next_token() -> None:
    """The time counts from the last token of anyone, not from the last request."""
    dog = watchdog()
    first, second = dog.begin(0.0), dog.begin(0.0)
    dog.token(first, 5.0)
    dog.begin(14.0)
    assert dog.stalled_for_s(14.9) is None
    assert dog.stalled_for_s(15.0) == 10.0
    dog.token(second, 15.0)
    assert dog.stalled_for_s(24.9) is None


def test_a_long_prompt_is_no_stall() -> None:
    """While all wait for their first token the longer deadline holds."""
    dog = watchdog()
    dog.begin(100.0)
    assert dog.stalled_for_s(149.0) is None
    assert dog.stalled_for_s(150.0) == 50.0


def test_the_time_before_a_request_does_not_count() -> None:
    """The first request after an idle time begins at zero."""
    dog = watchdog()
    earlier = dog.begin(0.0)
    dog.token(earlier, 1.0)
    dog.end(earlier)
    later = dog.begin(1000.0)
    assert dog.stalled_for_s(1001.0) is None
    dog.token(later, 1002.0)
    assert dog.stalled_for_s(1011.0) is None


@given(st.lists(st.tuples(st.sampled_from(["begin", "token", "end"]), st.integers(0, 9))))
def test_requests_are_counted_whatever_their_order(actions: list[tuple[str, int]]) -> None:
    """The number in flight is that of the requests which have begun and not ended."""
    dog = watchdog()
    running: list[Passage] = []
    for now, (action, choice) in enumerate(actions):
        if action == "begin":
            running.append(dog.begin(now))
        elif running and action == "token":
            dog.token(running[choice % len(running)], now)
        elif running:
            dog.end(running.pop(choice % len(running)))
        assert dog.num_in_flight == len(running)
        assert (dog.stalled_for_s(now + 1e9) is None) is (not running)


# Processes


@pytest.fixture
def session(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A session of a shell and a program of the name of Triton's stub."""
    stub = tmp_path / "triton_python_backend_stub"
    stub.write_bytes(Path("/bin/sleep").read_bytes())
    stub.chmod(0o700)
    command = f"{stub} 1000 & sleep 1000 & echo started; wait; sleep 1000"
    with subprocess.Popen(
        ["/bin/sh", "-c", command], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            for pid in session_members(process.pid):
                os.kill(pid, signal.SIGKILL)


def watch_with_stub(session: int) -> tuple[SessionWatch, int]:
    """The watch and the stub's process id, once the shell has become it."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        watch = SessionWatch(session, stopped_timeout_s=1.0)
        if len(watch.pids) == 2:
            (stub,) = set(watch.pids) - {session}
            return watch, stub
        time.sleep(0.01)
    raise AssertionError("the stub never started")


def wait_for_state(pid: int, letters: str) -> None:
    deadline = time.monotonic() + 10
    while True:
        stat = Path(f"/proc/{pid}/stat").read_text()
        if stat.rpartition(")")[2].split()[0] in letters:
            return
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_stub_that_ends_is_missed(session: subprocess.Popen[str]) -> None:
    """Also as a zombie that nobody reaps; other programs of the session may come and go."""
    watch, stub = watch_with_stub(session.pid)
    (other,) = set(session_members(session.pid)) - {session.pid, stub}
    os.kill(other, signal.SIGKILL)
    assert watch.failure(0.0) is None
    os.kill(stub, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while (missing := watch.failure(0.0)) is None:
        assert time.monotonic() < deadline
    assert missing.pid == stub
    assert missing.ended
    assert missing.reason == f"a Python stub (process {stub}) has ended"


def test_a_stub_that_is_stopped_is_missed_after_a_while(session: subprocess.Popen[str]) -> None:
    """One that goes on in time is not, and the time begins anew at the next stop."""
    watch, stub = watch_with_stub(session.pid)
    os.kill(stub, signal.SIGSTOP)
    wait_for_state(stub, "T")
    assert watch.failure(0.0) is None
    assert watch.failure(0.9) is None
    os.kill(stub, signal.SIGCONT)
    wait_for_state(stub, "SR")
    assert watch.failure(1.5) is None
    os.kill(stub, signal.SIGSTOP)
    wait_for_state(stub, "T")
    assert watch.failure(2.0) is None
    missing = watch.failure(3.0)
    assert missing is not None
    assert missing.pid == stub
    assert not missing.ended
    assert missing.reason.endswith("is stopped")


# Settings


def test_the_deadlines_of_the_supervision_are_settings() -> None:
    """Each can be set, by file and variable, and is checked."""
    config = changed(Settings(), {"supervision.stall_timeout_s": 7, "supervision.max_restarts": 0})
    assert config.supervision.stall_timeout_s == 7
    assert config.supervision.max_restarts == 0
