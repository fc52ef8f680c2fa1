"""Both clients with SASL (DIGEST-MD5) on bookies of both kinds, in the clear and with TLS.

Apache's client in version 2 does not get through SASL and TLS together with Apache's bookies, so that is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.devcluster import DevTls
from fastbk.safe_files import write_text
from fastbk.security.credentials import Credentials
from tests.compat.java_cells import run_cells
from tests.compat.python_cells import CELLS, run_python
from tests.compat.results import Result, is_wanted
from tests.compat.tls import apache_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.compat.rig import Rig

JAVA_WORDS = ("append", "quorum", "lac", "recovery", "fence")
PYTHON_WORDS = ("append", "lac", "tail", "recovery", "blocking")
USER, PASSWORD = "bookkeeper-app", 'a \\"quoted\\" secret'
"""Apache's bookies accept names with `bookkeeper` in them by default."""
LOGIN_FILE = f"""
Bookie {{
    org.apache.zookeeper.server.auth.DigestLoginModule required
        user_{USER}="{PASSWORD}";
}};
BookKeeper {{
    org.apache.zookeeper.server.auth.DigestLoginModule required
        username="{USER}" password="{PASSWORD}";
}};
"""


def sasl_cells(rig: Rig, only: list[str]) -> Iterator[Result]:
    """Java's client in both protocols, and ours in all of its three."""
    folder = rig.folder / "sasl"
    tls = DevTls(folder / "tls")
    certificates = tls.environment_file.parent
    login_file, password_file = folder / "jaas.conf", folder / "password"
    write_text(login_file, LOGIN_FILE)
    write_text(password_file, PASSWORD.replace("\\", ""))
    credentials = Credentials(user=USER, password_file=str(password_file), sasl_without_tls=True)
    java = f"-Djava.security.auth.login.config={login_file}"
    apache = {
        "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory",
        **apache_keys(certificates),
    }
    authentication: dict[str, object] = {
        "methods": ["sasl"],
        "users_file": str(login_file),
        "users_allowed": ".*bookkeeper.*",
    }
    in_the_clear: dict[str, dict[str, object]] = {
        "authentication": {**authentication, "sasl_without_tls": True}
    }
    encrypted = {
        "authentication": authentication,
        "tls": {**tls.sections()["tls"], "client_certificates": "none"},
    }
    wanted = {name: cell for name, cell in CELLS.items() if is_wanted(name, only or PYTHON_WORDS)}
    for kind, counts, ours, tls_options, protocols in (
        ("ours", (4, 0), in_the_clear, None, ("v3", "v2")),
        ("ours tls", (4, 0), encrypted, tls.options, ("v3", "v2")),
        ("mixed", (2, 2), in_the_clear, None, ("v2",)),
        ("mixed tls", (2, 2), encrypted, tls.options, ("v3",)),
    ):
        client: dict[str, object] = {"credentials": credentials, "tls": tls_options}
        options = [java, "-Dfastbk.compat.sasl=true"]
        if tls_options is not None:
            options.append(f"-Dfastbk.compat.tls={certificates}")
        with rig.cluster(
            ours=counts[0],
            apache=counts[1],
            our_settings=ours,
            apache_settings=apache,
            java_options=(java,),
        ) as cluster:
            for protocol in protocols:
                words = [cluster.metadata_uri, protocol, "client", *(only or JAVA_WORDS)]
                yield from run_cells(
                    f"java {protocol} sasl > {kind}",
                    cluster,
                    rig.programs,
                    words,
                    options=options,
                    client_options=client,
                )
            for protocol in ("v3", "v2"):
                yield from run_python(
                    f"python {protocol} sasl > {kind}",
                    cluster,
                    wanted,
                    {"apache_protocol": protocol, **client},
                )
