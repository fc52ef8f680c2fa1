"""What a query of rig `spark` stands on: ZooKeeper and bookies, which are killed and started again when a step asks.

The processes of a query ask by one line of JSON to a port of the rig's own, and go on when it is answered: so a
service dies at a step, not about then. It comes back after the time that its kill names, while the query goes on.

Queries reach ZooKeeper through a proxy. "during" a change of metadata: answers are held back, the change is sent, and
the server dies when it has done it, so that the one who asked cannot know.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

from fastbk.devcluster import is_alive
from fastbk.devcluster.cluster import ZooKeeperServer
from fastbk.devcluster.faults import TcpProxy
from fastbk.meta import open_store
from fastbk.meta.uri import ZooKeeperLocation
from fastbk.meta.zookeeper import admin as zookeeper_admin
from fastbk.testing import LocalCluster

BOOKIES = 3
SESSION_TIMEOUT_S = 4.0
TICK_MS = 200
BACK_S = 90.0
"""How long a service may take to be back beyond the time it was to be away."""
CHANGE_S = 20.0
"""How long a change that was announced may take to reach the server."""
HELD_S = 280.0
ENDS_S = 60.0
"""How long an orphan may go on after it was released."""
POLL_S = 0.02
ROOT = "/rig/ledgers"


class Services:
    """ZooKeeper, bookies and the port; all of them end with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._server = ZooKeeperServer(
            folder / "zookeeper", tick_ms=TICK_MS, session_timeout_max_s=SESSION_TIMEOUT_S
        )
        self._wrong: list[str] = []
        self._busy = threading.Lock()
        """Held while a service is away: one at a time."""
        self._released = threading.Event()
        self._ends = threading.Event()
        # ZooKeeper's server dies with the thread that has started it, so that has to stay.
        self._bringing = ThreadPoolExecutor(1, thread_name_prefix="rig-brings-back")
        self._orphans: list[dict[str, Any]] = []

    def __enter__(self) -> Services:
        with ExitStack() as stack:
            stack.callback(self._bringing.shutdown)
            self._server.start()
            stack.callback(self._server.stop)
            near = ZooKeeperLocation((self._server.address,), ROOT, None)
            zookeeper_admin.init(near)
            self._proxy = stack.enter_context(TcpProxy(self._server.address))
            self.near_uri = near.uri
            """For whoever looks from outside."""
            self.uri = ZooKeeperLocation((self._proxy.address,), ROOT, None).uri
            """For queries."""
            self.cluster = stack.enter_context(
                LocalCluster(BOOKIES, data=self._folder / "cluster", metadata_uri=self.near_uri)
            )
            self._listener = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
            self.port = int(self._listener.getsockname()[1])
            threading.Thread(target=self._accept, name="rig-asked", daemon=True).start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._release()
        self._busy.acquire(timeout=BACK_S)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._stack.close()

    @property
    def server_pid(self) -> int:
        """ZooKeeper's; 0 while it is away."""
        return self._server.pid

    @property
    def orphans_held(self) -> int:
        """How many stand still."""
        return len(self._orphans)

    def settle(self) -> list[str]:
        """Wait until everything is back and orphans have ended; return what went wrong since the last time."""
        self._release()
        for orphan in self._orphans:
            if not until(lambda pid=orphan["pid"]: not is_alive(pid), ENDS_S):  # type: ignore[misc]
                self._wrong.append("an orphan did not end")
                with suppress(ProcessLookupError):
                    os.kill(orphan["pid"], signal.SIGKILL)
        self._orphans = []
        self._released.clear()
        if not self._busy.acquire(timeout=BACK_S):
            self._wrong.append("a service did not come back")
        else:
            self._busy.release()
            with closing(open_store(self.near_uri)) as store:
                if not until(lambda: len(store.list_bookies()) == BOOKIES, BACK_S):
                    self._wrong.append(f"bookies did not come back:\n{self.cluster.log_tails()}")
        wrong, self._wrong = self._wrong, []
        return wrong

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file:
            said = json.loads(file.readline())
            try:
                self._do(said)
            except Exception as error:  # a rig that cannot do what it is asked has proven nothing
                self._wrong.append(f"{said}: {type(error).__name__}: {error}")
            with suppress(OSError):  # the one who asked has died
                connection.sendall(b"done")

    def _do(self, said: dict[str, Any]) -> None:
        match said["service"]:
            case "hold":
                self._orphans.append(said)
                self._released.wait(HELD_S)
            case "release":
                if not self._orphans:
                    raise LookupError("there is no orphan")
                self._release()
            case "bookie":
                self._take_away(lambda: self.cluster.kill(said["number"]))
                self._come_back(said["away_s"], lambda: self.cluster.start_bookie(said["number"]))
            case "metadata" if said["when"] == "during":
                self._take_away(lambda: self._proxy.stall(to_client=True))
                before = self._last_change()
                self._bringing.submit(self._kill_after, before, said)
            case "metadata":
                self._take_away(self._kill_metadata)
                self._come_back(said["away_s"], self._start_metadata)
            case other:
                raise ValueError(other)

    def _release(self) -> None:
        for orphan in self._orphans:
            for pid in orphan["stopped"]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        self._released.set()

    def _take_away(self, act: Callable[[], object]) -> None:
        if not self._busy.acquire(timeout=BACK_S):
            raise TimeoutError("the service before is still away")
        try:
            act()
        except BaseException:
            self._busy.release()
            raise

    def _come_back(self, away_s: float, act: Callable[[], object]) -> None:
        def back() -> None:
            try:
                self._ends.wait(away_s)
                act()
            except Exception as error:  # told by `settle`
                self._wrong.append(f"{type(error).__name__}: {error}")
            finally:
                self._busy.release()

        self._bringing.submit(back)

    def _kill_metadata(self) -> None:
        self._server.kill()
        self._proxy.cut()  # what was held back is lost
        self._proxy.resume()

    def _start_metadata(self) -> None:
        self._server.start()
        self._proxy.mend()

    def _kill_after(self, before: str, said: dict[str, Any]) -> None:
        try:
            if not until(lambda: self._last_change() != before, CHANGE_S):
                self._wrong.append("the change that was announced did not reach the server")
        except Exception as error:  # told by `settle`
            self._wrong.append(f"{type(error).__name__}: {error}")
        self._kill_metadata()
        self._come_back(said["away_s"], self._start_metadata)

    def _last_change(self) -> str:
        """Return the number of the server's last change."""
        host, _, port = self._server.address.rpartition(":")
        with socket.create_connection((host, int(port)), 10.0) as connection:
            connection.sendall(b"srvr")
            with connection.makefile() as file:
                found = re.search(r"^Zxid: (\S+)$", file.read(), re.MULTILINE)
        assert found is not None
        return found[1]


def until(is_so: Callable[[], bool], limit_s: float) -> bool:
    """Wait for something; return whether it came."""
    end_s = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > end_s:
            return False
        time.sleep(POLL_S)
    return True
