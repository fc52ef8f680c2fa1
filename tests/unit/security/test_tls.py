"""What TLS is made of: files, the contexts of them, the environment, and files that change."""

from __future__ import annotations

import math
import os
import random
import ssl
import time
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

from fastbk.client.config import ClientConfig
from fastbk.errors import ConfigError
from fastbk.security.authority import Authority, Issued
from fastbk.security.certificates import CertificateEnds, end_s, java_subject, names
from fastbk.security.peer_certificate import end_s as certificate_end_s
from fastbk.security.peer_certificate import first_role
from fastbk.security.tls import (
    SESSIONS_S,
    Context,
    RefreshedContext,
    TlsFiles,
    TlsOptions,
    client_context,
    server_context,
)
from tests.fixtures.certificates import der


@pytest.fixture
def issued(authority: Authority, tmp_path: Path) -> Issued:
    return authority.issue(tmp_path / "own", ["localhost", "127.0.0.1"])


def files_of(issued: Issued, **more: str) -> TlsFiles:
    return TlsFiles(
        certificate_file=str(issued.certificate_file), key_file=str(issued.key_file), **more
    )


def test_the_policy(issued: Issued, authority: Authority) -> None:
    context = server_context(files_of(issued, ca_file=str(authority.ca_file)), "require", "[tls]")
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_REQUIRED
    for cipher in context.get_ciphers():
        assert cipher["aead"], cipher["name"]
        assert cipher["protocol"] == "TLSv1.3" or cipher["name"].startswith("ECDHE"), cipher["name"]
    client = client_context(TlsFiles(ca_file=str(authority.ca_file)), verify_name=True)
    assert (client.verify_mode, client.check_hostname) == (ssl.CERT_REQUIRED, True)
    lax = client_context(TlsFiles(ca_file=str(authority.ca_file)), verify_name=False)
    assert (lax.verify_mode, lax.check_hostname) == (ssl.CERT_REQUIRED, False)


def test_what_files_are_refused_and_why(
    issued: Issued, authority: Authority, tmp_path: Path
) -> None:
    other = authority.issue(tmp_path / "other")
    (tmp_path / "garbage").write_text(
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    )
    open_key = tmp_path / "open.key"
    open_key.write_bytes(issued.key_file.read_bytes())
    open_key.chmod(0o644)
    certificate, key = str(issued.certificate_file), str(issued.key_file)
    cases: list[tuple[TlsFiles, str]] = [
        (TlsFiles(), "needs a certificate"),
        (TlsFiles(certificate_file=certificate), "go together"),
        (TlsFiles(certificate_file=certificate, key_file="/none"), "/none is missing"),
        (TlsFiles(certificate_file=certificate, key_file=str(open_key)), "chmod o="),
        (
            TlsFiles(certificate_file=certificate, key_file=str(other.key_file)),
            "not the certificate's",
        ),
        (TlsFiles(certificate_file=str(tmp_path / "garbage"), key_file=key), "garbage"),
        (TlsFiles(certificate_file=key, key_file=key), "tls.key"),
    ]
    for files, reason in cases:
        with pytest.raises(ConfigError, match=reason) as caught:
            server_context(files, "none", "[tls]")
        assert str(caught.value).startswith("[tls]")
    with pytest.raises(ConfigError, match="no ca to verify"):
        server_context(files_of(issued), "require", "[tls]")


def test_a_key_with_a_password(issued: Issued, tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(issued.key_file.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.touch(0o600)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    password = tmp_path / "password"
    password.touch(0o600)
    certificate = str(issued.certificate_file)
    for said, is_right in (("secret\n", True), ("wrong", False), ("", False)):
        password.write_text(said)
        files = TlsFiles(
            certificate_file=certificate, key_file=str(locked), key_password_file=str(password)
        )
        if is_right:
            server_context(files, "none", "[tls]")
        else:
            with pytest.raises(ConfigError, match=r"password|decrypt"):
                server_context(files, "none", "[tls]")
    with pytest.raises(ConfigError):  # and the terminal is not asked
        server_context(
            TlsFiles(certificate_file=certificate, key_file=str(locked)), "none", "[tls]"
        )


def test_changed_files_make_a_new_context_and_broken_ones_none(
    issued: Issued, authority: Authority, tmp_path: Path
) -> None:
    files = files_of(issued)
    now_s = [0.0]
    failures: list[str] = []
    refreshed = RefreshedContext(
        files,
        lambda: server_context(files, "none", "[tls]"),
        refresh_s=10.0,
        failed=failures.append,
        clock_s=lambda: now_s[0],
    )
    first = refreshed.current()
    new = authority.issue(tmp_path / "new")
    os.replace(new.certificate_file, issued.certificate_file)
    assert refreshed.current() is first  # not looked at yet
    now_s[0] = 10.0
    assert refreshed.current() is first
    assert len(failures) == 1
    os.replace(new.key_file, issued.key_file)
    now_s[0] = 20.0
    second = refreshed.current()
    assert second is not first
    issued.key_file.unlink()
    now_s[0] = 30.0
    assert refreshed.current() is second
    assert len(failures) == 2


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    said = TlsOptions(
        ca_file="/ca",
        certificate_file="/c",
        key_file="/k",
        key_password_file="/p",
        verify_name=False,
    )
    assert TlsOptions.from_environment(said.environment()) == said
    assert TlsOptions.from_environment(TlsOptions().environment()) == TlsOptions()
    assert TlsOptions.from_environment({}) is None
    assert TlsOptions.from_environment({"FASTBK_TLS_CA_FILE": "/ca"}) == TlsOptions(ca_file="/ca")
    assert TlsOptions.from_environment({"FASTBK_TLS": "0", "FASTBK_TLS_CA_FILE": "/ca"}) is None
    for wrong in ({"FASTBK_TLS": "yes"}, {"FASTBK_TLS": "1", "FASTBK_TLS_VERIFY_NAME": "no"}):
        with pytest.raises(ConfigError, match="must be 0 or 1"):
            TlsOptions.from_environment(wrong)
    monkeypatch.setenv("FASTBK_TLS_CA_FILE", "/ca")
    assert ClientConfig().tls == TlsOptions(ca_file="/ca")
    assert ClientConfig(tls=None).tls is None


def test_what_certificates_say(issued: Issued, authority: Authority, tmp_path: Path) -> None:
    assert names(str(issued.certificate_file)) == ["localhost", "127.0.0.1"]
    assert names(str(authority.ca_file)) == []
    early = authority.issue(tmp_path / "early", valid_for=timedelta(days=1))
    both = tmp_path / "both.crt"
    both.write_bytes(issued.certificate_file.read_bytes() + early.certificate_file.read_bytes())
    assert end_s(str(both)) == end_s(str(early.certificate_file))
    ends = CertificateEnds(files_of(issued))
    path = str(issued.certificate_file)
    before = ends.ends_s()[path]
    os.replace(early.certificate_file, path)
    assert ends.ends_s()[path] < before
    issued.certificate_file.unlink()
    assert math.isnan(ends.ends_s()[path])


def test_an_authority_is_taken_again_until_it_ends(tmp_path: Path) -> None:
    made = Authority.make(tmp_path)
    again = Authority.load(tmp_path)
    assert again is not None
    issued = again.issue(tmp_path / "own")
    context = server_context(files_of(issued, ca_file=str(made.ca_file)), "require", "[tls]")
    assert context.cert_store_stats()["x509_ca"] == 1
    assert Authority.load(tmp_path / "none") is None
    (tmp_path / "ca.crt").write_text("garbage")
    assert Authority.load(tmp_path) is None


def stores(authority: Authority, issued: Issued, folder: Path, password: bytes) -> TlsFiles:
    """PKCS12 stores of key and authorities, as Java's keytool makes them."""
    key = serialization.load_pem_private_key(issued.key_file.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    certificate = x509.load_pem_x509_certificate(issued.certificate_file.read_bytes())
    ca = x509.load_pem_x509_certificate(authority.ca_file.read_bytes())
    encryption = serialization.BestAvailableEncryption(password)
    identity = pkcs12.serialize_key_and_certificates(b"a", key, certificate, [ca], encryption)
    trust = pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(ca, b"ca")], encryption)
    for name, content in (("own.p12", identity), ("trust.p12", trust), ("password", password)):
        (folder / name).touch(0o600)
        (folder / name).write_bytes(content)
    said = str(folder / "password")
    return TlsFiles(
        certificate_file=str(folder / "own.p12"),
        key_password_file=said,
        ca_file=str(folder / "trust.p12"),
        ca_password_file=said,
    )


def test_pkcs12_stores(issued: Issued, authority: Authority, tmp_path: Path) -> None:
    files = stores(authority, issued, tmp_path, b"secret")
    context = server_context(files, "require", "[tls]")
    assert context.cert_store_stats()["x509_ca"] == 1
    handshake(context, client_context(files, verify_name=True))
    assert names(files.certificate_file, files.key_password_file) == ["localhost", "127.0.0.1"]
    assert all(not math.isnan(one) for one in CertificateEnds(files).ends_s().values())
    Path(files.key_password_file).write_text("wrong")
    with pytest.raises(ConfigError, match="another password"):
        server_context(files, "require", "[tls]")


def test_a_store_of_javas_own_format_is_refused_with_the_cure(
    issued: Issued, authority: Authority, tmp_path: Path
) -> None:
    store = tmp_path / "keys.jks"
    store.touch(0o600)
    store.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
    cure = r"keytool -importkeystore -srckeystore \S+keys\.jks -destkeystore \S+keys\.p12 -deststoretype PKCS12"
    with pytest.raises(ConfigError, match=cure):
        server_context(TlsFiles(certificate_file=str(store)), "none", "[tls]")
    with pytest.raises(ConfigError, match=cure):
        server_context(files_of(issued, ca_file=str(store)), "require", "[tls]")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Have both shake hands, in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    ours = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    waiting = [ours, theirs]
    for _ in range(10):
        for one in list(waiting):
            try:
                one.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(one)
    assert not waiting


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("me", "CN=me"),
        ("x+y, z", r"CN=x\+y\, z"),
        ("  a=b#c ", r"CN=\ \ a\=b\#c\ "),
        ("Zoë", "CN=Zoë"),
    ],
)
def test_a_subject_as_zookeeper_compares_it(
    authority: Authority, tmp_path: Path, name: str, expected: str
) -> None:
    made = authority.issue(tmp_path / "client", common_name=name, roles="0:writer")
    assert java_subject(str(made.certificate_file)) == f"OU=0:writer,{expected}"


def shaken(
    client: ssl.SSLContext, server: Context, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return both ends of a handshake. Raises ssl.SSLError."""
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(theirs, ours, server_hostname="localhost", session=session)
    far = server.wrap_bio(ours, theirs, server_side=True)
    left = [near, far]
    while left:
        for one in list(left):
            try:
                one.do_handshake()
                left.remove(one)
            except ssl.SSLWantReadError:
                pass
    return near, far


def test_a_session_of_tls_1_2_does_not_outlive_its_certificate(
    issued: Issued, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of(issued, ca_file=str(authority.ca_file))
    now_s = [0.0]
    refreshed = RefreshedContext(
        files,
        lambda: server_context(files, "require", "[tls]"),
        refresh_s=1e9,
        clock_s=lambda: now_s[0],
    )
    own = authority.issue(tmp_path / "client", valid_for=timedelta(minutes=5))
    client = client_context(files_of(own, ca_file=str(authority.ca_file)), verify_name=True)
    shaken(client, refreshed.current())
    assert not refreshed.current().has_sessions, "of TLS 1.3 nobody resumes"
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    first = refreshed.current()
    near, _ = shaken(client, first)
    assert (near.session_reused, first.has_sessions) == (False, True)
    again, far_again = shaken(client, first, near.session)
    assert (again.session_reused, far_again.session_reused) == (True, True)
    assert certificate_end_s(far_again.getpeercert(binary_form=True) or b"") == pytest.approx(
        time.time() + 300, abs=60
    )
    with monkeypatch.context() as later:
        later.setattr("fastbk.security.tls.time.time", lambda: 4e9)
        with pytest.raises(ssl.SSLError, match="has ended"):
            shaken(client, first, near.session)
    now_s[0] = SESSIONS_S
    second = refreshed.current()
    assert second is not first
    other, _ = shaken(client, second, near.session)
    assert not other.session_reused


@pytest.mark.parametrize("roles", ["0:writer,reader;1:x", "1:x;0: writer ", "", "x", "0:\u00e9"])
def test_roles_and_end_are_those_that_were_issued(
    roles: str, authority: Authority, tmp_path: Path
) -> None:
    own = authority.issue(tmp_path, roles=roles)
    text = own.certificate_file.read_text()
    certificate = ssl.PEM_cert_to_DER_cert(text)
    wanted = "writer" if "writer" in roles else "\u00e9" if "\u00e9" in roles else ""
    assert first_role(certificate) == wanted
    assert certificate_end_s(certificate) == end_s(str(own.certificate_file))


def test_no_bytes_make_the_reading_of_a_certificate_raise(
    authority: Authority, tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    whole = ssl.PEM_cert_to_DER_cert(
        authority.issue(tmp_path, roles="0:writer").certificate_file.read_text()
    )
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(dice.choice((1, 1, 3, 10))):
            data[dice.randrange(len(data))] = dice.randrange(256)
        cut = bytes(data[: dice.randrange(len(data))]) if dice.random() < 0.3 else bytes(data)
        first_role(cut)
        certificate_end_s(cut)
    assert (first_role(b""), certificate_end_s(b"")) == ("", 0.0)
    for tag, text in ((0x17, b"bad"), (0x18, b"20300101000000Z"), (0x17, b"9913320000Z")):
        parts = (
            der(0x02, b"\x01")
            + der(0x30, b"") * 2
            + der(0x30, der(0x17, b"") + der(tag, text))
            + der(0x30, b"")
        )
        found = certificate_end_s(der(0x30, der(0x30, parts)))
        assert found == (1893456000.0 if tag == 0x18 else 0.0)
