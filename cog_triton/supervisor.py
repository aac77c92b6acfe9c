"""Keeps a Triton server running: notices that it failed, ends it whole, starts it again.

Whatever the failure was, every process of it is killed: the connections of running requests
break at that, so they end at once and need no watching of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cog_triton.errors import PortInUse, TritonGaveUp, TritonRestarting
from cog_triton.generation import Generation, bury, until_failed
from cog_triton.restart_policy import RestartPolicy
from cog_triton.server import TritonServer
from cog_triton.settings import Settings

PORT_WAIT_S = 2.0
PORT_PERIOD_S = 0.1


class Supervisor:
    """Watches a server that is ready, and those that come after it; lives on one event loop.

    `start` starts a server and returns at once (it is called in a thread); `say` gets a line
    for each failure and restart.
    """

    def __init__(
        self,
        server: TritonServer,
        config: Settings,
        *,
        start: Callable[[], TritonServer],
        say: Callable[[str], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._config = config
        self._start = start
        self._say = say
        self._policy = RestartPolicy(config.supervision)
        self._reason = ""
        self._gave_up = False
        self._changed: asyncio.Future[None] = loop.create_future()
        self._generation: Generation | None = Generation(server, config)
        self._task = loop.create_task(self._keep_running(self._generation))

    @property
    def healthy(self) -> bool:
        """Whether predictions can be served now; costs nothing."""
        return self._generation is not None and self._generation.works

    @property
    def failure(self) -> str | None:
        """While there is no running server: why the last one failed."""
        return self._reason if self._generation is None else None

    async def generation(self) -> Generation:
        """The running server; waits a bounded time for a restart.

        Raises TritonRestarting if that takes longer than `supervision.restart_wait_s`, and
        TritonGaveUp at once when the server is not restarted any more.
        """
        loop = asyncio.get_running_loop()
        wait_s = self._config.supervision.restart_wait_s
        deadline = loop.time() + wait_s
        while not self._gave_up:
            current = self._generation
            if current is not None and current.works:
                return current
            remaining_s = deadline - loop.time()
            if remaining_s <= 0:
                raise TritonRestarting(f"Not ready after {wait_s:g} s: {self._reason}")
            await asyncio.wait([self._changed], timeout=remaining_s)
        raise TritonGaveUp(f"The Triton server is not restarted any more: {self._reason}")

    async def close(self, grace_s: float) -> None:
        """End the watching, and then the server, as TritonServer.stop does."""
        while not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1.0)
        current = self._generation
        if not self._gave_up:
            self._reason = "the deployment was ended"
            self._gave_up = True
        self._become(None)
        if current is not None:
            await asyncio.to_thread(current.server.stop, grace_s)
            await current.client.aclose()

    async def _keep_running(self, first: Generation) -> None:
        current: Generation | None = first
        try:
            while current is not None:
                self._become(current)
                ready_at = asyncio.get_running_loop().time()
                failure = await until_failed(current, self._config)
                served_s = asyncio.get_running_loop().time() - ready_at
                current.report(failure)
                self._become(None)
                self._reason = await bury(current, failure)
                current = await self._next(served_s)
        except Exception as err:  # without a watch nothing would be restarted: that is no service
            self._reason = f"the supervisor failed: {err!r}"
            if current is not None:
                await asyncio.to_thread(current.server.stop, 0)
        self._give_up()

    def _become(self, generation: Generation | None) -> None:
        """Another server, or none; whoever waits looks again."""
        self._generation = generation
        self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()

    def _give_up(self) -> None:
        self._gave_up = True
        self._become(None)
        self._say(f"Triton is not restarted any more, as it failed too often: {self._reason}")

    async def _next(self, served_s: float) -> Generation | None:
        """The server after one that failed, ready; None when there have been too many."""
        loop = asyncio.get_running_loop()
        while (delay_s := self._policy.after_failure(served_s)) is not None:
            self._say(f"Triton failed: {self._reason.rstrip()}\nIt is started again.")
            await asyncio.sleep(delay_s)
            started_at = loop.time()
            try:
                server = await self._started()
            except Exception as err:  # a start that fails is one more failure, whatever it was
                self._reason = str(err) or repr(err)
                served_s = 0.0
                continue
            self._say(f"Triton is ready again after {loop.time() - started_at:.1f} s")
            return Generation(server, self._config)
        return None

    async def _started(self) -> TritonServer:
        """A server that is ready; one that does not become it is killed."""
        starting = asyncio.ensure_future(self._start_when_ports_are_free())
        try:
            server = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread that starts it goes on: what it has started is not left behind.
            await asyncio.to_thread((await starting).stop, 0)
            raise
        try:
            await server.wait_ready(self._config.triton.start_timeout_s)
        except BaseException:
            await asyncio.to_thread(server.stop, 0)
            raise
        return server

    async def _start_when_ports_are_free(self) -> TritonServer:
        """The ports of a server that was killed may be taken for a moment longer."""
        deadline = asyncio.get_running_loop().time() + PORT_WAIT_S
        while True:
            try:
                return await asyncio.to_thread(self._start)
            except PortInUse:
                if asyncio.get_running_loop().time() >= deadline:
                    raise
            await asyncio.sleep(PORT_PERIOD_S)
