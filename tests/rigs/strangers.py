"""Rig `strangers`: a bookie with TLS, tokens, passwords and tags, and clients that show it what nobody expects.

All that a client can send before it is trusted, or to prove who it is, is changed: hellos, tokens, ledgers' tags, SASL,
reports, Apache's AUTH and START_TLS, certificates that the bookie's authority has signed, heads of HTTP. Several
threads each have connections of their own; a case is one input. The bookie's processes are real. It loses if one of
them is not what it was before, if an honest client is not served meanwhile, or if the worker had to end a connection
because of a fault of its own (INV-N5).
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import random
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import fastbk
from fastbk.devcluster.processes import is_alive
from fastbk.errors import Error
from fastbk.meta import open_store
from fastbk.native import client_codec as codec
from fastbk.safe_files import write_text
from fastbk.security.authority import Authority
from fastbk.security.credentials import Credentials
from fastbk.security.digest_md5 import DigestClient, SaslError
from fastbk.security.tokens import TokenKey, sign_tag
from fastbk.testing import LocalCluster
from fastbk.wire.messages import (
    MAGIC,
    REPORT,
    SASL,
    TAG,
    TAG_WANTED,
    TOKEN,
    Hello,
    HelloReply,
    decode_reply,
    encode_hello,
    encode_info,
)
from tests.fixtures import apache_wire
from tests.fixtures.certificates import ODD_EXTENSIONS, odd_certificate, signed
from tests.fixtures.pages import metrics
from tests.fixtures.users import write_users
from tests.rigs.report import Plan, Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.devcluster import Bookie

THREADS = 8
BATCH = 64
BATCHES_MAX = 8
CERTIFICATE_USES = 3
JUDGE_S = 2.0
PATIENCE_S, HASTE_S = 10.0, 0.02
"""For an answer that has to come, and for one that most often does not."""
_ODD_TEXTS = (
    "\ud800",
    "\udfff\x00",
    "\x1b]0;x\x07",
    "\u202e",
    "a" * 3000,
    "",
    " #",
    "k1",
    "EdDSA",
    "1e999",
    "𝕏" * 50,
)
_NAMES = (
    "alg",
    "typ",
    "kid",
    "crit",
    "b64",
    "zip",
    "jwk",
    "x5c",
    "cty",
    "sub",
    "aud",
    "exp",
    "nbf",
    "iat",
    "jti",
)
_MORE_NAMES = ("ops", "ns", "ledger", "\ud800", "", "epk")


@dataclasses.dataclass
class Target:
    """The bookie that is attacked, and what its authority, its keys and its users' file are."""

    bookie: Bookie
    authority: Authority
    key: TokenKey
    audience: str
    folder: Path
    report: Report
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def token(self, namespaces: list[str] | None = None) -> bytes:
        """Return a good token."""
        rights = ("read", "add", "recover")
        return self.key.sign(
            "app", rights, self.audience, lifetime_s=86_400, namespaces=namespaces
        ).encode()

    def count(self, found: Counter[str], inputs: int) -> None:
        """Take in what a connection did."""
        with self.lock:
            self.report.cases += inputs
            self.report.counts += found


# ------------------------------------------------------------------ inputs


def changed(data: bytes, dice: random.Random) -> bytes:
    """Change a few bytes, cut, repeat or mix."""
    out = bytearray(data or b"\0")
    for _ in range(dice.choice((1, 1, 2, 5, 20))):
        at = dice.randrange(len(out))
        match dice.randrange(6):
            case 0:
                out[at] ^= dice.randrange(1, 256)
            case 1:
                out[at] = dice.choice(b'._-="\\,{}[]\x00\xff\xc3 Aa9\r\n')
            case 2:
                del out[at : at + dice.choice((1, 3, 40))]
            case 3:
                out[at:at] = dice.choice(
                    (b"\xed\xa0\x80", b"\\ud800", b".", b'"', b"\r\n", dice.randbytes(3))
                )
            case 4:
                out[at : at + 4] = dice.randbytes(4)
            case _:
                other = dice.randrange(len(out))
                out[at : at + 20] = out[other : other + 20]
        if not out:
            out = bytearray(b".")
    return bytes(out)


def odd_value(dice: random.Random, depth: int = 3) -> object:
    """Return what JSON can say."""
    match dice.randrange(9):
        case 0 | 1 | 2:
            return dice.choice(_ODD_TEXTS)
        case 3:
            return dice.choice((0, -1, 1 << 64, 10**400, 1.5, -1e308, 2e9, True, None))
        case 4 if depth:
            return [odd_value(dice, depth - 1) for _ in range(dice.randrange(3))]
        case 5 if depth:
            return {
                dice.choice(_ODD_TEXTS): odd_value(dice, depth - 1)
                for _ in range(dice.randrange(3))
            }
        case _:
            return dice.choice(("EdDSA", "JWT", "k1", "fastbk-ledger", "none", "HS256"))


def encoded(value: object, dice: random.Random) -> bytes:
    """Return a value as a part of a token, perhaps very deep."""
    text = "[" * 1500 + "]" * 1500 if dice.random() < 0.01 else json.dumps(value)
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=")


def odd_token(target: Target, good: bytes, dice: random.Random) -> bytes:
    """Return a token that is changed, unsigned with odd fields, or signed with odd claims."""
    kind = dice.random()
    if kind < 0.3:
        return changed(good, dice)
    names = (*_NAMES, *_MORE_NAMES)
    header: dict[str, object] = {"alg": "EdDSA", "typ": "JWT", "kid": target.key.key_id}
    if dice.random() < 0.7:
        header |= {dice.choice(names): odd_value(dice) for _ in range(dice.randrange(1, 3))}
    claims: dict[str, object] = {
        "sub": "app",
        "aud": target.audience,
        "exp": int(time.time()) + 60,
        "iat": 0,
    }
    claims |= {"ops": ["read"], "ns": dice.choice((["a"], "a", "b")), "ledger": 7}
    claims |= {dice.choice(names): odd_value(dice) for _ in range(dice.randrange(3))}
    shown = odd_value(dice) if dice.random() < 0.03 else header
    body = encoded(shown, dice) + b"." + encoded(claims, dice)
    signature = target.key.private_key.sign(body) if dice.random() < 0.5 else dice.randbytes(64)
    return (body + b"." + base64.urlsafe_b64encode(signature).rstrip(b"="))[:4200]


def odd_hello(target: Target, goods: dict[str, bytes], dice: random.Random) -> bytes:
    """Return a hello of any kind, its frame changed once in a while."""
    method = dice.choice(
        (TOKEN, TOKEN, TOKEN, TAG, SASL, REPORT, TAG_WANTED, "", "x" * 200, "tokén")
    )
    if method in (TOKEN, TAG):
        payload = odd_token(target, goods[method], dice)
    elif method == REPORT:
        payload = changed(goods[REPORT], dice)
    else:
        payload = dice.choice((b"", b"7", b"9" * 19, dice.randbytes(30), b"\xff" * 4000))
    versions = dice.choice(((1, 1), (0, 65535), (2, 3), (1, 1)))
    name = dice.choice(("näme", "\x1b[2J", "n" * 3000, ""))
    frame = encode_hello(
        dice.randrange(1 << 63), Hello(version_min=versions[0], version_max=versions[1], client_name=name,
                                       auth_method=method, auth_payload=payload)
    )  # fmt: skip
    return changed(frame, dice) if dice.random() < 0.1 else frame


def odd_answer(challenge: bytes, dice: random.Random) -> bytes:
    """Return a response of SASL that proves nothing."""
    login = DigestClient(dice.choice(("bookkeeper", "näme", "\u202e")), "wrong")
    try:
        response = login.respond(changed(challenge, dice) if dice.random() < 0.2 else challenge)
    except SaslError:
        response = b'username="\xff\xfe",nonce="",response=\xed\xa0\x80'
    return changed(response, dice) if dice.random() < 0.8 else response


def odd_head(dice: random.Random) -> bytes:
    """Return a request of HTTP."""
    target = dice.choice(
        (
            "/metrics?names=\xff",
            "/livez",
            "/api/v1/bookie/gc",
            "/api/v1/ledger/read?ledger_id=%ff%00",
        )
    )
    lines = [
        f"{dice.choice(('GET', 'POST', 'PUT', 'HEAD', 'X'))} {target} HTTP/1.1",
        "Host: localhost",
    ]
    for _ in range(dice.randrange(4)):
        name = dice.choice(
            ("Content-Length", "Authorization", "Origin", "Host", "Content-Type", "X\xff", "Cookie")
        )
        value = dice.choice(
            ("5", "-1", "9" * 30, "Bearer \xff.\xfe.x", "application/json", "\x1b[2J", "\u00b2")
        )
        lines.append(f"{name}: {value}")
    head = "\r\n".join((*lines, "", "")).encode("latin-1")
    return changed(head, dice) if dice.random() < 0.6 else head


# ------------------------------------------------------------------ clients


class Stranger:
    """One thread's inputs and connections."""

    def __init__(self, target: Target, seed: int, number: int) -> None:
        self.counts: Counter[str] = Counter()
        self._target = target
        self._dice = random.Random(f"{seed}.{number}")
        self._folder = target.folder / f"stranger-{number}"
        self._key_file, self._contents = self._certificates()
        tag = sign_tag(target.key, 7, "a", target.audience)
        report = {"event": "ledger.bookie_replaced", "ledger_id": 1, "first_entry_id": 0, "bookie": "a", "index": 0,
                  "replacement": "b", "reason": "r", "cause": "writer", "client": "c"}  # fmt: skip
        self._goods = {TOKEN: target.token(["a"]), TAG: tag, REPORT: json.dumps(report).encode()}
        self._context = self._new_context()
        self._uses = 0
        self._session: ssl.SSLSession | None = None

    def turn(self) -> int:
        """Have one connection; return how many inputs it sent."""
        ways: list[tuple[float, Callable[[], int]]] = [
            (0.55, self._hello_in_tls), (0.1, self._sasl_in_tls), (0.1, self._apache_in_tls), (0.04, self._trusted),
            (0.09, self._in_the_clear), (0.12, self._pages),
        ]  # fmt: skip
        (way,) = self._dice.choices([one for _, one in ways], [weight for weight, _ in ways])
        try:
            return way()
        except (OSError, EOFError, struct.error):
            self.counts["cut"] += 1
            return 1

    def _certificates(self) -> tuple[Path, list[bytes]]:
        """Return the file of one key, and what certificates for it say, to be changed and signed."""
        contents = []
        names = list(ODD_EXTENSIONS)
        for number in range(8):
            chosen = {
                ODD_EXTENSIONS[name][0]: name
                for name in self._dice.sample(names, self._dice.randrange(1, 4))
            }
            issued = odd_certificate(
                self._target.authority, self._folder / str(number), list(chosen.values()), roles="0:writer,reader;1:x",
                key_file=self._folder / "0" / "tls.key" if number else None,
            )  # fmt: skip
            whole = ssl.PEM_cert_to_DER_cert(issued.certificate_file.read_text())
            start = 4 if whole[1] == 0x82 else 3
            size = struct.unpack_from(">H", whole, start + 2)[0]
            contents.append(whole[start : start + 4 + size])
        return self._folder / "0" / "tls.key", contents

    def _new_context(self) -> ssl.SSLContext:
        """Return the context of a client with another certificate, signed by the authority, or without one."""
        dice = self._dice
        while True:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if dice.random() < 0.2:
                context.maximum_version = ssl.TLSVersion.TLSv1_2
            if dice.random() < 0.2:
                return context
            content = bytearray(dice.choice(self._contents))
            for _ in range(dice.choice((0, 1, 2, 4))):
                at = dice.randrange(len(content) // 4, len(content))
                content[at] = dice.choice((0xFF, 0x00, dice.randrange(256)))
            path = self._folder / "shown.pem"
            path.write_text(
                ssl.DER_cert_to_PEM_cert(signed(self._target.authority, bytes(content)))
            )
            try:
                context.load_cert_chain(path, self._key_file)
            except ssl.SSLError:
                continue  # our own OpenSSL does not send it
            self.counts["certificates"] += 1
            return context

    def _secure(self) -> ssl.SSLSocket:
        if self._uses >= CERTIFICATE_USES:
            self._context, self._uses, self._session = self._new_context(), 0, None
        self._uses += 1
        sock = self._connect(self._target.bookie.port)
        try:
            found = self._context.wrap_socket(sock, session=self._session)
        except BaseException:
            sock.close()
            raise
        self.counts["handshakes"] += 1
        self.counts["resumed"] += bool(found.session_reused)
        if found.version() == "TLSv1.2":
            self._session = found.session
        return found

    def _connect(self, port: int, timeout_s: float = PATIENCE_S) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), timeout_s)

    def _hello_in_tls(self) -> int:
        with self._secure() as sock:
            sock.sendall(MAGIC + odd_hello(self._target, self._goods, self._dice))
            sock.settimeout(HASTE_S)
            with suppress(TimeoutError):
                sock.recv(4096)
        return 1

    def _sasl_in_tls(self) -> int:
        with self._secure() as sock:
            sock.sendall(MAGIC + encode_hello(1, Hello(auth_method=SASL)))
            _, _, reply = decode_reply(_frames(sock, 1)[0])
            challenge = reply.auth_payload if isinstance(reply, HelloReply) else b""
            sock.sendall(
                encode_hello(
                    2, Hello(auth_method=SASL, auth_payload=odd_answer(challenge, self._dice))
                )
            )
            sock.recv(4096)
        return 2

    def _apache_in_tls(self) -> int:
        dice = self._dice
        is_upgraded = dice.random() < 0.3
        if is_upgraded:
            sock = self._connect(self._target.bookie.port)
            sock.sendall(apache_wire.v3_start_tls(1))
            sock.recv(4096)
            secure = self._context.wrap_socket(sock)
            self.counts["handshakes"] += 1
        else:
            secure = self._secure()
        with secure:
            secure.sendall(apache_wire.v3_auth(1, b""))
            challenge = secure.recv(4096)
            at = challenge.find(b"realm=")
            answer = odd_answer(challenge[at:] if at >= 0 else b"", dice)
            frame = apache_wire.v3_auth(2, answer)
            secure.sendall(changed(frame, dice) if dice.random() < 0.2 else frame)
            secure.settimeout(HASTE_S)
            with suppress(TimeoutError):
                secure.recv(4096)
        return 2

    def _trusted(self) -> int:
        """Of a client with a good token: tags, reports, further hellos, and at last another token."""
        dice, inputs = self._dice, 1
        with self._secure() as sock:
            sock.sendall(
                MAGIC + encode_hello(1, Hello(auth_method=TOKEN, auth_payload=self._goods[TOKEN]))
            )
            _frames(sock, 1)
            for _ in range(dice.randrange(1, BATCHES_MAX + 1)):
                sent = []
                for at in range(BATCH):
                    method = dice.choices((TAG, REPORT, SASL), (0.85, 0.1, 0.05))[0]
                    if method == TAG:
                        payload = odd_token(self._target, self._goods[TAG], dice)
                    else:
                        payload = changed(self._goods[REPORT], dice)
                    sent.append(
                        encode_hello(at + 2, Hello(auth_method=method, auth_payload=payload))
                    )
                sock.sendall(b"".join(sent))
                self.counts["answers"] += len(_frames(sock, BATCH))
                inputs += BATCH
            sock.sendall(encode_hello(99, Hello(auth_method=TOKEN, auth_payload=odd_token(
                self._target, self._goods[TOKEN], dice))))  # fmt: skip
            sock.recv(4096)
        return inputs + 1

    def _in_the_clear(self) -> int:
        dice = self._dice
        frames = (
            MAGIC + odd_hello(self._target, self._goods, dice), changed(MAGIC + encode_info(1), dice),
            changed(apache_wire.v3_auth(1, b"x"), dice), changed(apache_wire.v3_start_tls(1), dice),
            b"\x16" + dice.randbytes(dice.randrange(300)), changed(MAGIC + codec.put_read(1, 7, 0), dice),
        )  # fmt: skip
        with self._connect(self._target.bookie.port) as sock:
            sock.sendall(dice.choice(frames))
            sock.settimeout(HASTE_S)
            with suppress(TimeoutError):
                sock.recv(4096)
        self.counts["clear"] += 1
        return 1

    def _pages(self) -> int:
        port = self._target.bookie.http_port
        assert port is not None
        with self._connect(port) as sock:
            sock.sendall(odd_head(self._dice))
            sock.settimeout(HASTE_S)
            with suppress(TimeoutError):
                sock.recv(65536)
        self.counts["heads"] += 1
        return 1


def _frames(sock: socket.socket, count: int) -> list[bytes]:
    """Return the next frames. Raises EOFError."""
    data, found = b"", list[bytes]()
    while len(found) < count:
        if len(data) >= 4 and len(data) >= 4 + (size := int.from_bytes(data[:4], "little")):
            found.append(data[: 4 + size])
            data = data[4 + size :]
            continue
        if not (more := sock.recv(65536)):
            raise EOFError
        data += more
    return found


# ------------------------------------------------------------------ judge


def run(plan: Plan) -> Report:
    """Send inputs as long as the plan says."""
    report = Report("strangers")
    folder = plan.folder / f"strangers-{os.getpid()}-{plan.seed}"
    (folder / "signing").mkdir(parents=True)
    (folder / "read").mkdir()
    key = TokenKey.generate("k1")
    write_text(folder / "read" / "keys.json", key.public_text())
    write_text(folder / "read" / "tags.json", key.public_text())
    write_text(folder / "signing" / "tag.json", key.text())
    write_users(folder / "read", "bookkeeper")
    settings: dict[str, dict[str, object]] = {
        "bookie": {"workers": 1},
        "tls": {"mode": "prefer", "client_certificates": "request", "handshakes_rate": 100_000},
        "http": {"tls": False},
        "network": {"hello_timeout": "2s"},
        "authentication": {
            "methods": ["token", "sasl", "certificate"],
            "token_keys_file": str(folder / "read" / "keys.json"),
            "tag_keys_file": str(folder / "read" / "tags.json"),
            "tag_key_file": str(folder / "signing" / "tag.json"),
            "users_file": str(folder / "read" / "users"),
        },
    }
    with LocalCluster(1, tls=True, settings=settings) as cluster:
        store = open_store(cluster.metadata_uri)
        audience = store.instance_id()
        store.close()
        authority = (
            Authority.load(Path(cluster.tls_options.ca_file).parent)
            if cluster.tls_options
            else None
        )
        assert authority is not None
        target = Target(cluster.bookies[0], authority, key, audience, folder, report)
        _attack(plan, cluster, target)
    return report


def _attack(plan: Plan, cluster: LocalCluster, target: Target) -> None:
    bookie, report = target.bookie, target.report
    bookie.refresh()
    before = (dict(bookie.pids), bookie.boots)
    ends = threading.Event()
    threads = [
        threading.Thread(target=_send, args=(target, plan, number, ends), daemon=True)
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    write_text(target.folder / "token", target.token().decode())
    assert cluster.tls_options is not None
    tls = dataclasses.replace(cluster.tls_options, certificate_file="", key_file="")
    credentials = Credentials(token_file=str(target.folder / "token"))
    while report.is_good:
        is_last = not plan.goes_on(report.cases) and report.cases > 0
        if is_last:
            ends.set()
            for thread in threads:
                thread.join(PATIENCE_S)
        began_s = time.monotonic()
        try:
            with fastbk.sync.connect(
                cluster.metadata_uri, tls=tls, credentials=credentials
            ) as client:
                with client.create_ledger(1, 1, 1) as writer:
                    writer.append(b"honest")
                assert [
                    bytes(one.data) for one in client.open_ledger(writer.ledger_id).read(0, 0)
                ] == [b"honest"]
            report.counts["honest"] += 1
        except (Error, OSError) as error:
            why = getattr(error, "replicas", {})
            report.lose(
                [f"an honest client is not served: {error!r} {why}"], f"input {report.cases}"
            )
        report.counts["slowest_ms"] = max(
            report.counts["slowest_ms"], int((time.monotonic() - began_s) * 1e3)
        )
        bookie.refresh()
        if (bookie.pids, bookie.boots) != before or not all(map(is_alive, bookie.pids.values())):
            report.lose(
                [f"a process ended: {before} is now {bookie.pids}, {bookie.boots}"],
                f"input {report.cases}",
            )
        elif failed := metrics(bookie).get("fastbk_worker_connections_failed_total", 0.0):
            what = f"{failed:.0f} inputs found a fault of the worker's: see {bookie.log_path}"
            report.lose([what], f"input {report.cases}")
        if is_last:
            break
        ends.wait(JUDGE_S)
    ends.set()
    if not report.is_good:
        report.notes.append(bookie.log_path.read_text("utf-8", "replace")[-6000:])


def _send(target: Target, plan: Plan, number: int, ends: threading.Event) -> None:
    stranger = Stranger(target, plan.seed, number)
    while not ends.is_set() and (plan.cases == 0 or target.report.cases < plan.cases):
        inputs = stranger.turn()
        target.count(stranger.counts, inputs)
        stranger.counts = Counter()
