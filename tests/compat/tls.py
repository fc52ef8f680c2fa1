"""Both clients with TLS, on bookies of both kinds that demand certificates of their clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.devcluster import DevTls
from tests.compat.java_cells import run_cells
from tests.compat.python_cells import CELLS, run_python
from tests.compat.results import Result, is_wanted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.compat.rig import Rig

JAVA_WORDS = ("append", "quorum", "digest", "read-", "lac", "recovery", "tls")
"""Of the names of Java's cells; those of wire-… have sockets of their own, in the clear."""
PYTHON_WORDS = ("append", "entry-sizes", "deferred", "lac", "tail", "recovery", "kill", "blocking")


def apache_keys(folder: Path) -> dict[str, str | Path]:
    """Return what an Apache bookie's file says of TLS, with the certificates of `folder`."""
    return {
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsProvider": "JDK",
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": folder / "bookie" / "tls.key",
        "tlsCertificatePath": folder / "bookie" / "tls.crt",
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": folder / "ca" / "ca.crt",
    }


def tls_cells(rig: Rig, only: list[str]) -> Iterator[Result]:
    """Java's client in both protocols, and ours in all of its three. Ours refuse who comes in the clear."""
    tls = DevTls(rig.folder / "tls")
    folder = tls.environment_file.parent
    apache = {**apache_keys(folder), "tlsClientAuthentication": "true"}
    ours = {"tls": tls.sections()["tls"]}
    wanted = {name: cell for name, cell in CELLS.items() if is_wanted(name, only or PYTHON_WORDS)}
    for kind, (our_count, apache_count) in {"ours": (4, 0), "mixed": (2, 2)}.items():
        with rig.cluster(
            ours=our_count, apache=apache_count, our_settings=ours, apache_settings=apache
        ) as cluster:
            for protocol in ("v3", "v2"):
                words = [cluster.metadata_uri, protocol, "client", *(only or JAVA_WORDS)]
                yield from run_cells(
                    f"java {protocol} tls > {kind}",
                    cluster,
                    rig.programs,
                    words,
                    options=[f"-Dfastbk.compat.tls={folder}"],
                    client_options={"tls": tls.options},
                )
            for protocol in ("v3", "v2"):
                options: dict[str, object] = {"apache_protocol": protocol, "tls": tls.options}
                yield from run_python(f"python {protocol} tls > {kind}", cluster, wanted, options)
