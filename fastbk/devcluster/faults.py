"""Faults of a cluster on this machine, without root: frozen processes, full disks, slow journals, cut networks.

Processes are frozen by SIGSTOP. A full disk and a slow journal are asked of the bookie, which has them for real from
there on (`fastbk.server.faults`). Networks are cut in proxies, one before each bookie and one between each bookie and
each server of ZooKeeper: bookies advertise 127.0.0.2, where at the same port their proxy listens.

Decision 129.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from fastbk.devcluster.processes import STOP_TIMEOUT_S, wait_for
from fastbk.errors import ConfigError, StorageError
from fastbk.meta.uri import is_zookeeper, parse_zookeeper
from fastbk.server.faults import DELAY_MS_MAX, Faults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.devcluster.processes import Bookie

INJECT_TIMEOUT_S = 30.0
Link = Literal["clients", "metadata"]


@dataclass
class _Network:
    """The proxies of one bookie."""

    clients: TcpProxy | None = None
    """None: it was not ready yet."""
    metadata: list[TcpProxy] = field(default_factory=list)
    is_cut: bool = False
    """Whether `cut` or `stall` has cut the bookie off from its clients."""


class ClusterFaults:
    """The faults of some bookies, by their numbers from 0; call from one thread at a time."""

    def __init__(self, bookies: Sequence[Bookie], *, has_proxies: bool) -> None:
        """Make them before bookies are started: `has_proxies` changes their configurations."""
        self._bookies = bookies
        self._frozen: dict[int, set[int]] = {}
        self._networks: list[_Network] = []
        for bookie in bookies if has_proxies else ():
            bookie.sections["bookie"]["advertised"] = PROXY_HOST
            network = _Network()
            self._networks.append(network)
            uri = str(bookie.sections["metadata"]["uri"])
            if is_zookeeper(uri):
                location = parse_zookeeper(uri)
                network.metadata = [TcpProxy(server) for server in location.servers]
                servers = tuple(proxy.address for proxy in network.metadata)
                bookie.sections["metadata"]["uri"] = replace(location, servers=servers).uri

    def bookies_ready(self) -> None:
        """Put proxies before bookies that have none at their port yet. Raises StorageError where they cannot be."""
        for bookie, network in zip(self._bookies, self._networks, strict=False):
            before = network.clients
            if before is not None and before.port == bookie.port:
                continue
            if before is not None:
                before.close()
            listen = f"{PROXY_HOST}:{bookie.port}"
            try:
                network.clients = TcpProxy(f"127.0.0.1:{bookie.port}", listen)
            except OSError as error:
                raise StorageError(
                    f"no proxy can listen on {listen} before {bookie.name}: {error.strerror}; give `[bookie] listen` an"
                    " address that is not 0.0.0.0, or leave `proxies` out"
                ) from error
            if before is not None:
                network.clients.delay_s = before.delay_s
            if network.is_cut:
                network.clients.cut()

    # --- processes ----------------------------------------------------------------------------------------------

    def bookie(self, number: int) -> Bookie:
        """Return a bookie, running or not. Raises ConfigError."""
        try:
            return self._bookies[number]
        except IndexError:
            last = len(self._bookies) - 1
            raise ConfigError(
                f"there is no bookie {number}: they count from 0, and the last one is {last}"
            ) from None

    def kill(self, number: int, process: str) -> None:
        """SIGKILL one process of a bookie, frozen or not. Raises ConfigError."""
        self.thaw(number)
        bookie = self._running(number)
        _check_process(bookie, process)
        bookie.kill(process)

    def freeze(self, number: int, process: str | None = None) -> None:
        """SIGSTOP all processes of a bookie, or one; return when they stand still. Raises ConfigError, TimeoutError."""
        bookie = self._running(number, may_be_frozen=True)
        if process is not None:
            _check_process(bookie, process)
        pids = set(bookie.pids.values()) if process is None else {bookie.pids[process]}
        self._frozen.setdefault(number, set()).update(pids)
        _signal(pids, signal.SIGSTOP)
        wait_for(
            lambda: all(map(_stands_still, pids)), STOP_TIMEOUT_S, f"{bookie.name} to stand still"
        )

    def thaw(self, number: int) -> None:
        """SIGCONT what was frozen of a bookie; nothing happens to one that was not."""
        _signal(self._frozen.pop(number, ()), signal.SIGCONT)

    # --- disks --------------------------------------------------------------------------------------------------

    def inject(
        self, number: int, *, commit_delay_ms: int | None = None, is_full: bool | None = None
    ) -> None:
        """Change what a bookie injects into itself, and return when it does; None: as before.

        A bookie that does not run has no such faults: to end them is done then. Raises ConfigError, TimeoutError.
        """
        if commit_delay_ms is not None and not 0 <= commit_delay_ms <= DELAY_MS_MAX:
            raise ConfigError(f"journal_ms={commit_delay_ms!r}: must be 0 to {DELAY_MS_MAX}")
        if not commit_delay_ms and not is_full and not self.bookie(number).is_running:
            return
        bookie = self._running(number)
        before = bookie.faults
        wanted = Faults(
            commit_delay_ms=before.commit_delay_ms if commit_delay_ms is None else commit_delay_ms,
            is_full=before.is_full if is_full is None else is_full,
        )

        def has_them() -> bool:
            bookie.refresh()
            return bookie.faults == wanted or not bookie.is_running

        bookie.inject(wanted)
        wait_for(has_them, INJECT_TIMEOUT_S, f"{bookie.name} to inject {wanted}")
        self._running(number)

    # --- network ------------------------------------------------------------------------------------------------

    def cut_off(self, number: int, of: Link, *, silently: bool) -> None:
        """Cut a bookie off from its clients, or from its metadata: `LocalCluster.cut_off`. Raises ConfigError."""
        network = self._network(number)
        if of == "clients":
            network.is_cut = True
        elif not network.metadata:
            raise ConfigError(
                "this cluster's metadata is a file, which no network leads to: give `metadata_uri` of a ZooKeeper"
            )
        for proxy in self._proxies(network, of):
            if silently:
                proxy.stall(to_server=True, to_client=True)
            else:
                proxy.cut()

    def rejoin(self, number: int) -> None:
        """End what `cut_off` did to a bookie; nothing happens to one that is not cut off."""
        if not self._networks:
            return
        network = self._network(number)
        network.is_cut = False
        for proxy in (*self._proxies(network, "clients"), *network.metadata):
            proxy.resume()
            proxy.mend()

    def delay_network(self, number: int, delay_ms: int) -> None:
        """Have what goes between a bookie and its clients take so much longer, each way. Raises ConfigError."""
        if not 0 <= delay_ms <= DELAY_MS_MAX:
            raise ConfigError(f"network_ms={delay_ms!r}: must be 0 to {DELAY_MS_MAX}")
        for proxy in self._proxies(self._network(number), "clients"):
            proxy.delay_s = delay_ms / 1e3

    # --- the end ------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """End all faults, and the proxies. Those that bookies inject into themselves end with them."""
        for number in list(self._frozen):
            self.thaw(number)
        for network in self._networks:
            for proxy in (*self._proxies(network, "clients"), *network.metadata):
                proxy.close()

    def _running(self, number: int, *, may_be_frozen: bool = False) -> Bookie:
        bookie = self.bookie(number)
        bookie.refresh()
        if not bookie.is_running:
            raise ConfigError(
                f"{bookie.name} does not run: start it first, with `start_bookie({number})`"
            )
        if number in self._frozen and not may_be_frozen:
            raise ConfigError(f"{bookie.name} is frozen: `thaw({number})` first")
        return bookie

    def _network(self, number: int) -> _Network:
        if not self._networks:
            raise ConfigError(
                "this cluster has no proxies, which cut and slow down its network: use LocalCluster(..., proxies=True)"
            )
        self.bookie(number)
        return self._networks[number]

    @staticmethod
    def _proxies(network: _Network, of: Link) -> list[TcpProxy]:
        if of == "metadata":
            return network.metadata
        return [] if network.clients is None else [network.clients]


def _check_process(bookie: Bookie, process: str) -> None:
    if process not in bookie.pids:
        raise ConfigError(
            f"{bookie.name} has no process {process!r}: it has {', '.join(bookie.pids)}"
        )


def _signal(pids: set[int] | tuple[()], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _stands_still(pid: int) -> bool:
    """Return whether every thread of a process is stopped, or the process is gone."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        stats = [(thread / "stat").read_text() for thread in threads]
    except OSError:
        return True
    return all(stat.rpartition(")")[2].split()[0] in "TZX" for stat in stats)


PROXY_HOST = "127.0.0.2"
"""Address of proxies that have the port of what is behind them on 127.0.0.1. Linux has all of 127.0.0.0/8 on
loopback.
"""
_PIECE_BYTES = 1 << 16
_CONNECT_TIMEOUT_S = 5.0
# SO_LINGER with 0 seconds: the other side sees a reset, as from a machine that lost power.
_RESET = struct.pack("ii", 1, 0)

Mangle = Callable[[bytes, bool], bytes]


class TcpProxy:
    """Forwards connections on loopback to `target` (host:port), and can cut, stall, slow down and change what passes.

        with TcpProxy("127.0.0.1:2181") as proxy:
            connect(proxy.address)
            proxy.cut()                   # ends every connection and refuses new ones
            proxy.mend()                  # takes new ones again
            proxy.stall(to_client=True)   # requests go through, answers are held back, no end of a connection is seen
            proxy.resume()                # what was held back goes on, in order
            proxy.delay_s = 0.05          # each piece of data arrives that much later
            proxy.mangle = lambda data, to_client: data[:-1]   # what is sent instead of `data`; b"" drops it

    Two threads a connection: meant for tests of what happens, not of how fast.

    Attributes:
        delay_s: each piece of data waits so long before it goes on; 0: not at all.
        mangle: gets each piece, and whether it goes to the client; what it returns goes on instead.
        accepted: connections that were forwarded so far.
    """

    def __init__(self, target: str, listen: str = "127.0.0.1:0") -> None:
        """Begin to listen, at any free port for port 0. Raises OSError where that port is taken."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.delay_s = 0.0
        self.mangle: Mangle | None = None
        self.accepted = 0
        self._turn = threading.Condition()
        self._stalled = {True: False, False: False}
        self._is_cut = False
        self._closed = False
        self._sockets: set[socket.socket] = set()
        self._listener = _listener_at(listen)
        self.host, self.port = self._listener.getsockname()[:2]
        self._start(self._accept, "accept")

    @property
    def address(self) -> str:
        """Where it listens, as host:port."""
        return f"{self.host}:{self.port}"

    def cut(self) -> None:
        """End all connections by a reset and refuse new ones. What was held back is lost."""
        with self._turn:
            self._is_cut = True
            ended, self._sockets = self._sockets, set()
            self._turn.notify_all()
        for one in ended:
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                # Wakes the thread that reads it; a close alone would not.
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def mend(self) -> None:
        """Take connections again."""
        with self._turn:
            self._is_cut = False
            self._turn.notify_all()

    def stall(self, *, to_server: bool = False, to_client: bool = False) -> None:
        """Hold data back in these directions; connections stay, and new ones are taken."""
        with self._turn:
            self._stalled = {True: to_client, False: to_server}

    def resume(self) -> None:
        """Let everything through again, what was held back first."""
        with self._turn:
            self._stalled = {True: False, False: False}
            self._turn.notify_all()

    def close(self) -> None:
        """End all connections and the proxy."""
        self._closed = True
        self.cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, function: Callable[..., None], name: str, *arguments: object) -> None:
        threading.Thread(target=function, args=arguments, name=f"proxy-{name}", daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = None
                if not self._is_cut:
                    server = socket.create_connection(self._target, _CONNECT_TIMEOUT_S)
                    server.settimeout(None)
            except OSError:
                server = None
            with self._turn:
                if server is None or self._is_cut:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    client.close()
                    if server is not None:
                        server.close()
                    continue
                self._sockets |= {client, server}
                self.accepted += 1
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(self._pump, "to-server", client, server, False)
            self._start(self._pump, "to-client", server, client, True)

    def _pump(self, source: socket.socket, target: socket.socket, to_client: bool) -> None:
        try:
            while data := source.recv(_PIECE_BYTES):
                if self.delay_s:
                    time.sleep(self.delay_s)
                with self._turn:
                    while self._stalled[to_client] and source in self._sockets:
                        self._turn.wait()
                    if source not in self._sockets:
                        return
                if self.mangle is not None:
                    data = self.mangle(data, to_client)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            # A reset, or nobody takes what came: both ends hear of it. The other thread may wait for data of `target`,
            # and a socket that a thread waits for is not ended by closing it.
            for one in (source, target):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        with self._turn:
            # The end of one direction: the sockets go when the other one has ended, too.
            if to_client or target not in self._sockets:
                for one in (source, target):
                    self._sockets.discard(one)
        if to_client:
            source.close()
            target.close()


def _listener_at(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(64)
    except OSError:
        listener.close()
        raise
    return listener
