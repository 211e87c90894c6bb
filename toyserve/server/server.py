"""``Server``: an LLM behind HTTP, started and stopped from a program or a notebook cell."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import socket
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn

from toyserve.clock import WallClock
from toyserve.llm import LLM
from toyserve.recording import Recording
from toyserve.server.app import make_app
from toyserve.server.chat import ChatTemplate
from toyserve.server.config import ServerConfig
from toyserve.server.engine_thread import EngineThread
from toyserve.server.health import health
from toyserve.server.observe import Metrics, gauges
from toyserve.server.service import Service

START_TIME = 30.0  # seconds for the listener to come up


class Server:
    """Serves one LLM over HTTP from threads of its own.

    llm: an LLM (with any scheduler, policy and memory), or a model's name. options: the fields of
    ServerConfig. ``with Server(llm) as server:`` starts and stops it; so do ``start`` and ``stop``,
    any number of times. While it runs the LLM belongs to it: ``llm.generate`` raises.
    """

    def __init__(
        self, llm: LLM | str = "toy", config: ServerConfig | None = None, **options: Any
    ) -> None:
        if config is not None and options:
            raise ValueError(f"give a config or {', '.join(options)}, not both")
        self.config = config or ServerConfig(**options)
        self.llm = LLM(llm) if isinstance(llm, str) else llm
        if not isinstance(self.llm.clock, WallClock):
            raise ValueError(
                f"clock is a {type(self.llm.clock).__name__}: clients wait in real time, so a "
                f"server needs clock='wall'"
            )
        self.model_name = self.config.model_name or str(
            Path(str(self.llm.engine.recording.meta.get("model", "model"))).name
        )
        self._listener: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None
        self.engine_thread: EngineThread | None = None

    # -- starting and stopping ------------------------------------------------------------------

    def start(self) -> Server:
        """Listen; returns when clients can connect. Raises ValueError if it cannot be.

        The recording begins anew. A second start while it runs does nothing.
        """
        if self.is_running:
            return self
        engine = self.llm.engine
        engine.restart()  # raises if another server has it, or somebody's requests are unfinished
        self._socket = listen(self.config.host, self.config.port)
        try:
            if self.config.record is not None:
                keep_old(self.config.record)
                engine.recording.stream_to(self.config.record)
            self._start_threads()
        except BaseException:
            self.stop(drain_time=0)
            raise
        atexit.register(self.stop, drain_time=0)
        return self

    def _start_threads(self) -> None:
        engine, config = self.llm.engine, self.config
        metrics = Metrics(engine, self.model_name)
        thread = EngineThread(
            engine,
            self.llm.tokenizer,
            max_queue=config.max_queue,
            max_steps=config.max_steps,
            observers=[metrics],
        )
        metrics.watch(thread)
        self.engine_thread = thread
        service = Service(self.llm, thread, self.model_name, int(time.time()))
        template = ChatTemplate.of(Path(str(self.llm.source)))
        app = make_app(service, config, metrics, template)
        self._listener = uvicorn.Server(
            uvicorn.Config(
                app,
                lifespan="off",
                access_log=False,
                log_level="error",
                timeout_graceful_shutdown=1,
                timeout_keep_alive=75,  # 5 s would cut connections just as clients use them again
                ws="none",
            )
        )
        engine.served_by = self.url
        thread.start()
        self._thread = threading.Thread(target=self._listen, name="toyserve-http", daemon=True)
        self._thread.start()
        self._wait_until_up()

    def _listen(self) -> None:
        assert self._listener is not None and self._socket is not None
        # A loop of its own: in a notebook another one is already running.
        asyncio.run(self._listener.serve(sockets=[self._socket]))

    def _wait_until_up(self) -> None:
        assert self._listener is not None and self._thread is not None
        deadline = time.monotonic() + START_TIME
        while not self._listener.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError("the HTTP listener did not start")
            time.sleep(0.005)

    def stop(self, drain_time: float | None = None) -> None:
        """Take no more requests, let the unfinished go on for ``drain_time`` seconds, end the rest.

        Streams that are cut off end with an error event and [DONE]. Returns when the port is free
        and both threads have ended. A second stop does nothing.
        """
        atexit.unregister(self.stop)
        thread = self.engine_thread
        if thread is not None and thread.is_alive:
            thread.close()
            seconds = self.config.drain_time if drain_time is None else drain_time
            _wait(lambda: thread.num_unfinished == 0, seconds)
            thread.stop()
        if self._thread is not None and self._thread.is_alive():
            assert self._listener is not None
            # The streams' last words are on their way: the listener waits a moment for them.
            self._listener.should_exit = True
            self._thread.join()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
        self._listener = self._thread = self._socket = None
        self.llm.engine.recording.close()
        if thread is not None:  # else the engine was never this server's
            self.llm.engine.served_by = None

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- looking at it --------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def port(self) -> int:
        """The one it listens at; raises ValueError while it does not."""
        if self._socket is None:
            raise ValueError("the server is not running: start() it first")
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """Where the dashboard is; OpenAI's clients take ``url + "/v1"`` as their base_url."""
        host = self.config.host
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
        return f"http://{f'[{host}]' if ':' in host and host[0] != '[' else host}:{self.port}"

    @property
    def recording(self) -> Recording:
        """What has happened since the start; a copy, if the server is running."""
        from toyserve.server.history import latest

        thread, recording = self.engine_thread, self.llm.engine.recording
        if thread is None or not thread.is_alive:
            return recording
        return thread.call(lambda: latest(recording, 2 * self.config.max_steps)).result()

    def health(self) -> dict[str, Any]:
        """What ``/health`` says."""
        if self.engine_thread is None:
            return {"status": "stopped"}
        return health(self.engine_thread, self.config.stall_time)

    def gauges(self) -> dict[str, float]:
        """Requests running, waiting and swapped, and the share of KV blocks in use, as of now."""
        return {name: value for name, (_, value) in gauges(self.llm.engine).items()}

    def __repr__(self) -> str:
        where = f"at {self.url}" if self.is_running else "stopped"
        return f"Server({self.model_name!r}, {where})"


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises ValueError in one sentence if the address cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"host is {host!r}: {error.strerror or error}") from None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise ValueError(
            f"port {port} of {host} cannot be had ({error.strerror}): stop the server that has it, "
            f"or take port 0, which is any that is free"
        ) from None
    return sock


def keep_old(path: Path) -> None:
    """Move an earlier recording out of the way, to ``run.1.jsonl`` and so on: nothing is lost."""
    number = 1
    while path.is_file() and path.stat().st_size:
        other = path.with_name(f"{path.stem}.{number}{path.suffix}")
        if not other.exists():
            path.rename(other)
        number += 1


def _wait(condition: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True
