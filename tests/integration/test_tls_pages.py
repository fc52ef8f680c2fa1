"""The pages of bookies, janitor and healer with TLS: encrypted, bounded, and what they say of certificates."""

from __future__ import annotations

import re
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.devcluster import DevService, DevTls
from fastbk.security.tls import TlsOptions
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(2, tls=True) as running:
        yield running


def test_pages_are_encrypted_and_bound_their_handshakes(
    cluster: LocalCluster, tls: TlsOptions
) -> None:
    port = cluster.bookies[0].http_port
    assert port is not None
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    context = ssl.create_default_context(cafile=tls.ca_file)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert secure.recv(100).startswith(b"HTTP/1.1 200")
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in sock.recv(100)
    for one in silent:
        one.close()


def test_metrics_say_when_certificates_end(cluster: LocalCluster, tls: TlsOptions) -> None:
    context = ssl.create_default_context(cafile=tls.ca_file)
    url = f"https://127.0.0.1:{cluster.bookies[1].http_port}/metrics"
    with urllib.request.urlopen(url, timeout=20, context=context) as answer:
        text = answer.read().decode()
    ends = re.findall(
        r'^fastbk_tls_certificate_end_seconds\{file="[^"]+"\} (\S+)$', text, re.MULTILINE
    )
    assert len(ends) == 2
    assert all(29 < (float(one) - time.time()) / 86_400 <= 30 for one in ends)


@pytest.mark.parametrize("name", ["janitor", "autorecovery"])
def test_the_pages_of_janitor_and_healer_are_encrypted(
    name: str, cluster: LocalCluster, tls: TlsOptions, tmp_path: Path
) -> None:
    service = DevService(name, tmp_path, cluster.metadata_uri, tls=DevTls(cluster.data / "tls"))
    service.start()
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        address = f"127.0.0.1:{service.http_port}"

        def answers() -> bool:
            try:
                with urllib.request.urlopen(
                    f"https://{address}/metrics", context=context
                ) as answer:
                    return b"fastbk_tls_certificate_end_seconds" in answer.read()
            except OSError:
                return False

        wait_until(answers, "it answers with TLS")
        with pytest.raises(ConnectionError):
            urllib.request.urlopen(f"http://{address}/livez", timeout=20).close()
    finally:
        service.stop()
