"""Bookies in ZooKeeper: registrations, which are ephemeral nodes, and identities beside Apache's cookies.

A registration lives as long as the session it was made in. When that expired, `renew` makes it anew in the next one;
nobody has to restart anything. A node that an earlier process of the same data left behind is taken over at once,
since whoever holds an incarnation holds its directories' locks; a node of other data is left alone.

Decisions 33 and 35.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec

from fastbk.errors import ConfigError, MetadataConflict, MetadataUnavailable, StorageError
from fastbk.meta.api import (
    APACHE_PROTOCOL,
    BadIdentity,
    BookieIdentity,
    BookieRegistration,
    BookieService,
    DirectoryIdentity,
    Endpoint,
    VersionedIdentity,
    unreadable_identity,
    unreadable_service,
)
from fastbk.meta.records import bad_record
from fastbk.meta.zookeeper.paths import Paths
from fastbk.meta.zookeeper.session import (
    BadVersion,
    Call,
    Node,
    NodeExists,
    NoNode,
    Op,
    ResultUnknown,
    Session,
)
from fastbk.model import protobuf
from fastbk.model.cookie import encode as encode_cookie
from fastbk.model.ids import BookieId, check_bookie_id

_READONLY = "readonly"


# --- registrations -----------------------------------------------------------------------------------------------


def list_bookies(call: Call, paths: Paths, watch: Any = None) -> list[BookieRegistration]:  # noqa: ANN401 -- kazoo's
    """Return the bookies that are alive, by id; a change of what is returned fires `watch`."""
    # Who is on the way between the two is in both: whatever the direction, not writable yet or any more.
    found: dict[BookieId, BookieRegistration] = {}
    for parent, writable in ((paths.available, True), (paths.readonly, False)):
        names = [
            name
            for name in call.children(parent, watch) or []
            if name != _READONLY and _is_bookie(parent, name)
        ]
        nodes = call.get_all((f"{parent}/{name}" for name in names), watch)
        for name, node in zip(names, nodes, strict=True):
            if node is not None:
                found[name] = BookieRegistration(_service(name, node), writable)
    return [one for _, one in sorted(found.items())]


def _service(bookie_id: BookieId, node: Node) -> BookieService:
    """Return what a registration says; one that makes no sense must not hide the other bookies."""
    try:
        return parse_service(bookie_id, node.data)
    except StorageError as error:
        return unreadable_service(bookie_id, error)


def _is_bookie(parent: str, name: str) -> bool:
    """Return whether a bookie can have that id; a node of another name is none's, and is named."""
    try:
        check_bookie_id(BookieId(name))
    except ConfigError as error:
        bad_record(f"{parent}/{name}", error)
        return False
    return True


def _identity(bookie_id: BookieId, node: Node) -> BookieIdentity:
    try:
        return parse_identity(bookie_id, node.data)
    except StorageError as error:
        raise unreadable_identity(bookie_id, error, node.version).bad.error() from error


class ZooKeeperLease:
    """The registration of one bookie."""

    def __init__(
        self, session: Session, paths: Paths, service: BookieService, *, writable: bool
    ) -> None:
        """Register. Raises MetadataConflict when other data is registered under this id."""
        # Thrice within a session's timeout, as Apache's clients ping.
        self.renew_interval_s = session.session_timeout_s / 3
        self._session = session
        self._paths = paths
        self._service = service
        self._writable = writable
        self._closed = False
        self._node: Node | None = None
        call = session.impatient_call(f"register bookie {service.bookie_id}")
        self._register(call, must_be_ours=False)

    def renew(self) -> None:
        """See that we are registered; do it again when our session expired."""
        call = self._session.impatient_call(f"renew bookie {self._service.bookie_id}")
        found = call.exists(self._path(self._writable))
        if found is None or not self._is_ours(found):
            self._register(call, must_be_ours=True)

    def set_writable(self, writable: bool) -> None:
        """Move between Apache's lists of writable and read-only bookies."""
        if writable == self._writable:
            self.renew()
            return
        before, self._writable = self._writable, writable
        call = self._session.impatient_call(f"register bookie {self._service.bookie_id}")
        try:
            self._register(call, must_be_ours=True)
        except MetadataConflict:
            self._writable = before
            raise

    def close(self) -> None:
        """Deregister. Raises MetadataUnavailable at once when there is no connection: the session runs out."""
        if self._closed:
            return
        self._closed = True
        if not self._session.is_connected:
            raise MetadataUnavailable(
                f"bookie {self._service.bookie_id} stays registered until its session of"
                f" {self._session.session_timeout_s:g} s has run out: ZooKeeper is away"
            )
        call = self._session.impatient_call(f"deregister bookie {self._service.bookie_id}")
        path = self._path(self._writable)
        found = call.exists(path)
        if found is not None and self._is_ours(found):
            with suppress(NoNode, BadVersion, ResultUnknown):
                call.delete(path, found.version)

    def _path(self, writable: bool) -> str:
        return self._paths.registration(self._service.bookie_id, writable=writable)

    def _is_ours(self, node: Node) -> bool:
        ours = self._node
        return ours is not None and (node.created_zxid, node.owner) == (
            ours.created_zxid,
            ours.owner,
        )

    def _register(self, call: Call, *, must_be_ours: bool) -> None:
        """Have exactly one node, with our data, in the current session.

        `must_be_ours`: leave a node alone that another lease of the same data made. Raises MetadataConflict.
        """
        data = service_bytes(self._service)
        target, other = self._path(self._writable), self._path(not self._writable)
        is_unknown = False
        while True:
            call.again()
            there, elsewhere = call.get_all([target, other])
            session_id = self._session.session_id
            if there is not None and elsewhere is None and there.owner == session_id:
                is_kept = must_be_ours and self._is_ours(there)
                # Or made by a transaction whose answer got lost.
                if is_kept or (is_unknown and there.data == data):
                    self._node = there
                    return
            for node in (there, elsewhere):
                if node is not None:
                    self._check_may_replace(node, must_be_ours=must_be_ours)
            is_gone = there is None and elsewhere is None and not is_unknown
            if is_gone and self._node is not None and self._node.owner == session_id:
                raise MetadataConflict(
                    f"somebody removed the registration of bookie {self._service.bookie_id}"
                )
            ops = [] if there is None else [Op.delete(target, there.version)]
            # First into the new list, then out of the old one, as Apache's bookies do; here in one transaction.
            ops.append(Op.create(target, data, ephemeral=True))
            if elsewhere is not None:
                ops.append(Op.delete(other, elsewhere.version))
            try:
                call.multi(ops)
            except NoNode:
                call.ensure(self._paths.readonly)
            except (NodeExists, BadVersion):
                continue  # an old session's node went, or another process is faster: look again
            except ResultUnknown:
                is_unknown = True
                call.sync(target)
            else:
                is_unknown = True  # what follows is the same as looking for a lost answer

    def _check_may_replace(self, node: Node, *, must_be_ours: bool) -> None:
        bookie_id = self._service.bookie_id
        held = _service(bookie_id, node).incarnation
        if held != self._service.incarnation:
            raise MetadataConflict(
                f"bookie id {bookie_id} is registered with other data (incarnation {held}); stop that"
                f" bookie, or wait {self._session.session_timeout_s:g} s after it died"
            )
        if must_be_ours and not self._is_ours(node):
            raise MetadataConflict(f"another process holds the registration of bookie {bookie_id}")


# --- identities --------------------------------------------------------------------------------------------------


class Identities:
    """Which data each bookie id stands for (INV-D1): our own nodes, and a cookie beside each for Apache's tools.

    One without its cookie does not count: Apache's tools take a bookie out of a cluster, or all of them, by deleting
    cookies, and know nothing of our nodes.
    """

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    def read(self, call: Call, bookie_id: BookieId) -> VersionedIdentity | None:
        """Return a bookie's identity."""
        path = self._paths.identity(check_bookie_id(bookie_id))
        both = [path, self._paths.cookie(bookie_id)]
        found, cookie = call.get_all(both)
        if found is None or cookie is None:
            # "Unknown" lets a bookie be born: that must not come from a server that is behind.
            call.sync(path)
            found, cookie = call.get_all(both)
        if found is None or cookie is None:
            return None
        return VersionedIdentity(_identity(bookie_id, found), found.version, found.written_ms / 1e3)

    def foreign_cookie(self, call: Call, bookie_id: BookieId) -> bytes | None:
        """Return a cookie that stands there without an identity of ours."""
        cookie_path = self._paths.cookie(check_bookie_id(bookie_id))
        call.sync(cookie_path)
        found, cookie = call.get_all([self._paths.identity(bookie_id), cookie_path])
        return cookie.data if found is None and cookie is not None else None

    def write(
        self,
        call: Call,
        identity: BookieIdentity,
        version: int | None,
        instance_id: str,
        replaced_cookie: bytes | None = None,
    ) -> int:
        """Create or compare-and-set an identity, and its cookie in the same transaction.

        `replaced_cookie`: bytes of a foreign cookie that may be replaced.
        """
        bookie_id = check_bookie_id(identity.bookie_id)
        path, cookie_path = self._paths.identity(bookie_id), self._paths.cookie(bookie_id)
        raw, cookie = identity_bytes(identity), cookie_bytes(identity, instance_id)
        new_version = 0 if version is None else version + 1
        is_unknown = False
        while True:
            call.again()
            found, cookie_node = call.get_all([path, cookie_path])
            if (
                is_unknown
                and found is not None
                and (found.version, found.data) == (new_version, raw)
            ):
                return new_version
            is_known = found is not None and cookie_node is not None
            if (found.version if found is not None and is_known else None) != version:
                raise _identity_conflict(bookie_id)
            if found is None and cookie_node is not None and cookie_node.data != replaced_cookie:
                raise MetadataConflict(
                    f"bookie id {bookie_id} has a cookie that is not fastbk's: another system's bookie"
                    " has that name; choose another one"
                )
            ops = []
            if found is not None and version is None:
                # left behind when its cookie was deleted
                ops.append(Op.delete(path, found.version))
            ops.append(Op.create(path, raw) if version is None else Op.set(path, raw, version))
            if cookie_node is None:
                ops.append(Op.create(cookie_path, cookie))
            else:
                ops.append(Op.set(cookie_path, cookie, cookie_node.version))
            try:
                call.multi(ops)
            except NoNode:
                call.ensure(self._paths.identities)
                call.ensure(self._paths.cookies)
            except (NodeExists, BadVersion):
                continue
            except ResultUnknown:
                is_unknown = True
                call.sync(path)
            else:
                return new_version

    def delete(self, call: Call, bookie_id: BookieId, version: int) -> None:
        """Forget an identity and its cookie."""
        path = self._paths.identity(check_bookie_id(bookie_id))
        cookie_path = self._paths.cookie(bookie_id)
        is_unknown = False
        while True:
            call.again()
            found, cookie_node = call.get_all([path, cookie_path])
            if is_unknown and found is None:
                return
            if found is None or cookie_node is None or found.version != version:
                raise _identity_conflict(bookie_id)
            try:
                call.multi([Op.delete(path, version), Op.delete(cookie_path, cookie_node.version)])
            except (NoNode, BadVersion):
                continue
            except ResultUnknown:
                is_unknown = True
                call.sync(path)
            else:
                return

    def list(self, call: Call) -> list[BookieIdentity | BadIdentity]:
        """Return all identities, by bookie id."""
        both = set(call.children(self._paths.identities) or []) & set(
            call.children(self._paths.cookies) or []
        )
        names = [
            BookieId(name) for name in sorted(both) if _is_bookie(self._paths.identities, name)
        ]
        nodes = call.get_all(self._paths.identity(name) for name in names)
        found: list[BookieIdentity | BadIdentity] = []
        for name, node in zip(names, nodes, strict=True):
            if node is None:
                continue
            try:
                found.append(parse_identity(name, node.data))
            except StorageError as error:
                found.append(unreadable_identity(name, error, node.version))
        return found


def _identity_conflict(bookie_id: BookieId) -> MetadataConflict:
    return MetadataConflict(
        f"the identity of bookie {bookie_id} was changed by somebody else: read it again"
    )


# --- the bytes of their nodes ------------------------------------------------------------------------------------
#
# What stands in the nodes of bookies and in fastbk's own, as bytes. No I/O.
#
# - a registration: Apache's protobuf message BookieServiceInfoFormat; our incarnation is one of its properties;
# - a cookie: Apache's (`fastbk.model.cookie`), the same that lies in each of the bookie's directories;
# - an identity: JSON;


INCARNATION_PROPERTY = "fastbk.incarnation"


def service_bytes(service: BookieService) -> bytes:
    """Return what a bookie's registration node holds."""
    out = bytearray()
    for endpoint in service.endpoints:
        message = bytearray()
        protobuf.put_bytes(message, 1, endpoint.name.encode())
        protobuf.put_int(message, 2, endpoint.port)
        protobuf.put_bytes(message, 3, endpoint.host.encode())
        protobuf.put_bytes(message, 4, endpoint.protocol.encode())
        for extension in endpoint.extensions:
            protobuf.put_bytes(message, 6, extension.encode())
        protobuf.put_bytes(out, 6, bytes(message))
    properties = {**service.properties, INCARNATION_PROPERTY: str(service.incarnation)}
    for key, value in properties.items():
        pair = bytearray()
        protobuf.put_bytes(pair, 1, key.encode())
        protobuf.put_bytes(pair, 2, value.encode())
        protobuf.put_bytes(out, 7, bytes(pair))
    return bytes(out)


def parse_service(bookie_id: BookieId, raw: bytes) -> BookieService:
    """Return what a registration node says; an Apache bookie's has incarnation 0. Raises StorageError.

    An empty node is an old Apache bookie's: its id is its address.
    """
    if not raw:
        host, colon, port = bookie_id.rpartition(":")
        at = (Endpoint(host, int(port), APACHE_PROTOCOL),) if colon and port.isdigit() else ()
        return BookieService(bookie_id, 0, at).check()
    endpoints: list[Endpoint] = []
    properties: dict[str, str] = {}
    try:
        for one in protobuf.fields(raw):
            if one.number == 6:
                endpoints.append(_endpoint(one.content()))
            elif one.number == 7:
                key, value = _pair(one.content())
                properties[key] = value
        incarnation = int(properties.pop(INCARNATION_PROPERTY, "0"))
    except ValueError as error:
        raise StorageError(f"the registration of bookie {bookie_id} is damaged: {error}") from error
    return BookieService(bookie_id, incarnation, tuple(endpoints), properties).check()


def _endpoint(message: bytes) -> Endpoint:
    texts = {1: "", 3: "", 4: ""}
    port = 0
    extensions: list[str] = []
    for one in protobuf.fields(message):
        if one.number in texts:
            texts[one.number] = one.content().decode()
        elif one.number == 2:
            port = one.integer()
        elif one.number == 6:
            extensions.append(one.content().decode())
    return Endpoint(texts[3], port, texts[4], texts[1], tuple(extensions))


def _pair(message: bytes) -> tuple[str, str]:
    texts = {1: "", 2: ""}
    for one in protobuf.fields(message):
        if one.number in texts:
            texts[one.number] = one.content().decode()
    return texts[1], texts[2]


def cookie_bytes(identity: BookieIdentity, instance_id: str) -> bytes:
    """Return what a bookie's cookie node holds."""
    return encode_cookie(identity.cookie(instance_id))


def identity_bytes(identity: BookieIdentity) -> bytes:
    """Return what a bookie's identity node holds."""
    # As text: a reader in another language may have no integers of 64 bits in its JSON.
    return json.dumps(
        {**msgspec.to_builtins(identity), "incarnation": str(identity.incarnation)}
    ).encode()


class _Identity(msgspec.Struct):
    """An identity's JSON."""

    bookie_id: str
    incarnation: int
    directories: tuple[DirectoryIdentity, ...]
    starts: int = 0


def parse_identity(bookie_id: BookieId, raw: bytes) -> BookieIdentity:
    """Return what an identity node says; raise StorageError if it makes no sense."""
    try:
        # Not strict: the incarnation is text.
        found = msgspec.json.decode(raw, type=_Identity, strict=False)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"the identity of bookie {bookie_id} is damaged: {error}") from error
    if found.bookie_id != bookie_id:
        raise StorageError(
            f"the identity of bookie {bookie_id} is damaged: it is of bookie {found.bookie_id}"
        )
    return BookieIdentity(bookie_id, found.incarnation, found.directories, found.starts)
