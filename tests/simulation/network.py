"""Links and connections: delays, cuts, silence, duplicates, reordering, clogs and partitions, drawn for each direction.

A connection carries frames in order in each direction, as TCP does; a link whose `reorders` is on stands for a proxy
that does not. What cannot be delivered over a blocked link is held (TCP sends it again) or lost; a connection that
lost one frame carries no later one, and its client finds out by a keepalive. Each connection is its own epoch: what
was sent over an older one never reaches the handles of a newer one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from tests.simulation.kernel import STALE, Kernel, Node

if TYPE_CHECKING:
    from tests.simulation.bookie import Bookie
    from tests.simulation.client import Client

TO_BOOKIE, TO_CLIENT = 0, 1
# Of (client, bookie or store, handler on the other side, its arguments).
Passes: TypeAlias = Callable[[Node, Node, Callable[..., object], tuple[Any, ...]], bool]
KEEPALIVE_S = (2.0, 6.0)


class Link:
    """One direction between two nodes, and what is wrong with it.

    Attributes:
        delay_s: the usual time a frame takes; each takes half to one and a half of it.
        cut, lose, duplicate: probability for each frame that its connection is cut, that it and all behind it are
            lost, that it arrives twice.
        reorders: frames may overtake each other.
        blocked: nothing passes; frames are held in `held`, or lost if `loses_blocked`.
    """

    __slots__ = (
        "blocked",
        "cut",
        "delay_s",
        "duplicate",
        "held",
        "is_plain",
        "lose",
        "loses_blocked",
        "random",
        "reorders",
    )

    def __init__(self, rng: random.Random) -> None:
        self.random = rng.random
        self.delay_s = 0.0002
        self.cut = 0.0
        self.lose = 0.0
        self.duplicate = 0.0
        self.reorders = False
        self.blocked = 0
        self.loses_blocked = False
        self.held: list[tuple[Connection | None, Node, Callable[..., object], tuple[Any, ...]]] = []
        self.is_plain = True

    def set_faults(self, cut: float, lose: float, duplicate: float, reorders: bool) -> None:
        """Say what happens to single frames from now on."""
        self.cut, self.lose, self.duplicate, self.reorders = cut, lose, duplicate, reorders
        self.is_plain = not (cut or lose or duplicate or reorders)


class Connection:
    """One connection of a client to a bookie. `lane` 0 is for adds, 1 for everything else."""

    __slots__ = (
        "bookie",
        "bookie_open",
        "client",
        "client_open",
        "epoch",
        "incarnation",
        "is_silent",
        "lane",
        "last_s",
        "links",
    )

    def __init__(
        self, client: Client, bookie: Bookie, lane: int, links: tuple[Link, Link], epoch: int
    ) -> None:
        self.client = client
        self.bookie = bookie
        self.lane = lane
        self.links = links
        self.epoch = epoch
        self.incarnation = 0
        self.client_open = True
        self.bookie_open = False
        self.is_silent = [False, False]
        self.last_s = [0.0, 0.0]


class Network:
    """All links of a world, by (client, bookie, direction); the metadata store's links are among them."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.links: dict[tuple[str, str], Link] = {}
        self.cuts = 0
        # A script's word about each frame: True = it goes on its way; else the script keeps it, or drops it.
        self.passes: Passes | None = None
        self._epoch = 0
        self._rng = kernel.rng("network")

    def link(self, source: Node, target: Node) -> Link:
        key = (source.name, target.name)
        found = self.links.get(key)
        if found is None:
            found = self.links[key] = Link(self.kernel.rng(f"link {key[0]} {key[1]}"))
        return found

    def connect(self, client: Client, bookie: Bookie, lane: int) -> Connection:
        """Make a connection that nobody has accepted yet."""
        self._epoch += 1
        links = (self.link(client, bookie), self.link(bookie, client))
        return Connection(client, bookie, lane, links, self._epoch)

    def send(
        self,
        connection: Connection,
        direction: int,
        handler: Callable[..., object],
        *arguments: Any,
    ) -> None:
        """Carry a frame: `handler(connection, *arguments)` on the other side, if it gets there."""
        link = connection.links[direction]
        kernel = self.kernel
        target: Node = connection.client if direction else connection.bookie
        delay_s = link.delay_s * (0.5 + link.random())
        if self.passes is not None and not self.passes(
            connection.client, connection.bookie, handler, (connection, *arguments)
        ):
            return
        if link.is_plain and not link.blocked and not connection.is_silent[direction]:
            at_s = kernel.now_s + delay_s
            last_s = connection.last_s
            if at_s < last_s[direction]:
                at_s = last_s[direction]
            last_s[direction] = at_s
            kernel.deliver(at_s, target, handler, connection, *arguments)
            return
        self._send_badly(connection, direction, target, delay_s, handler, arguments)

    def _send_badly(
        self,
        connection: Connection,
        direction: int,
        target: Node,
        delay_s: float,
        handler: Callable[..., object],
        arguments: tuple[Any, ...],
    ) -> None:
        link = connection.links[direction]
        kernel = self.kernel
        if connection.is_silent[direction]:
            return
        if link.blocked:
            if link.loses_blocked:
                self.silence(connection, direction)
            else:
                link.held.append((connection, target, handler, (connection, *arguments)))
            return
        if link.cut and link.random() < link.cut:
            self.cuts += 1
            self.cut(connection)
            return
        if link.lose and link.random() < link.lose:
            self.silence(connection, direction)
            return
        at_s = kernel.now_s + delay_s
        if link.reorders:
            at_s += delay_s * 4 * link.random()
        else:
            at_s = max(at_s, connection.last_s[direction])
            connection.last_s[direction] = at_s
        kernel.deliver(at_s, target, handler, connection, *arguments)
        if link.duplicate and link.random() < link.duplicate:
            kernel.deliver(at_s + delay_s, target, handler, connection, *arguments)

    def post(
        self, source: Node, target: Node, handler: Callable[..., object], *arguments: Any
    ) -> None:
        """Carry a message that belongs to no connection (metadata): it may be lost or doubled, nothing more."""
        link = self.link(source, target)
        if self.passes is not None and not self.passes(source, target, handler, arguments):
            return
        if link.blocked:
            if not link.loses_blocked:
                link.held.append((None, target, handler, arguments))
            return
        if (link.cut or link.lose) and link.random() < link.cut + link.lose:
            return
        at_s = self.kernel.now_s + link.delay_s * (0.5 + link.random())
        self.kernel.deliver(at_s, target, handler, *arguments)
        if link.duplicate and link.random() < link.duplicate:
            self.kernel.deliver(at_s + link.delay_s, target, handler, *arguments)

    def silence(self, connection: Connection, direction: int) -> None:
        """Nothing more arrives in that direction; the client's keepalive will find out."""
        connection.is_silent[direction] = True
        self.kernel.deliver(
            self.kernel.now_s + self._rng.uniform(*KEEPALIVE_S),
            connection.client,
            self.keepalive_expired,
            connection,
        )

    def keepalive_expired(self, connection: Connection) -> object:
        if not connection.client_open:
            return STALE
        self.cut(connection)
        return None

    def cut(self, connection: Connection) -> None:
        """End a connection for both sides, at once for what is under way."""
        now_s = self.kernel.now_s
        if connection.client_open:
            self.kernel.deliver(now_s, connection.client, connection.client.lost, connection)
        if connection.bookie_open:
            connection.bookie_open = False
            connection.bookie.forget(connection)

    def block(self, source: Node, target: Node, loses: bool) -> None:
        """Let nothing pass from now on, until as many calls of `unblock`."""
        link = self.link(source, target)
        link.blocked += 1
        link.loses_blocked = loses

    def unblock(self, source: Node, target: Node, rng: random.Random | None) -> None:
        """Let frames pass again; what was held arrives now, by connection in order, else in the order of `rng`."""
        link = self.link(source, target)
        link.blocked = max(0, link.blocked - 1)
        if link.blocked:
            return
        held, link.held = link.held, []
        if rng is not None:
            # Connections overtake each other, frames of one connection do not.
            order: dict[int, float] = {}
            held.sort(key=lambda one: order.setdefault(one[0].epoch if one[0] else 0, rng.random()))
        at_s = self.kernel.now_s
        for connection, node, handler, arguments in held:
            at_s += link.delay_s * 0.1
            if connection is not None:
                direction = TO_CLIENT if node is connection.client else TO_BOOKIE
                connection.last_s[direction] = at_s
            self.kernel.deliver(at_s, node, handler, *arguments)
