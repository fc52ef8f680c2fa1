"""TLS of a cluster on this machine: a trial authority in its folder, and what bookies and clients have of it.

`ca/` is the authority, `bookie/` what all bookies, the janitor and AutoRecovery show, `client/` what clients do.
`client.env` has the variables for them: `. fastbk-data/tls/client.env`.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from fastbk.devcluster.tcp_proxy import PROXY_HOST
from fastbk.errors import StorageError
from fastbk.private_files import make_directory, write_text
from fastbk.security.tls import TlsOptions

if TYPE_CHECKING:
    from pathlib import Path

    from fastbk.security.authority import Issued

NAMES = ("localhost", "127.0.0.1", "::1", PROXY_HOST)
ENVIRONMENT_NAME = "client.env"


class DevTls:
    """The authority of one folder, and two certificates that are new at each start.

    Attributes:
        options: TLS as a client has it, for `fastbk.connect(..., tls=...)`.
        environment_file: gives the same to a shell.
    """

    def __init__(self, directory: Path) -> None:
        """Make it, or take the authority that is there. Raises StorageError."""
        # 50 ms that a cluster without TLS does not pay.
        from fastbk.security.authority import Authority

        directory = directory.absolute()
        self.environment_file = directory / ENVIRONMENT_NAME
        try:
            make_directory(directory)
            authority = Authority.load(directory / "ca") or Authority.make(directory / "ca")
            self._ca_file = authority.ca_file
            self._bookie = authority.issue(directory / "bookie", NAMES, common_name="bookie")
            client = authority.issue(directory / "client", common_name="client")
            self.options = self._options(client)
            self._environment = self._options(self._bookie).environment()
            lines = (
                f"export {name}={shlex.quote(value)}\n"
                for name, value in self.options.environment().items()
            )
            write_text(self.environment_file, "".join(lines))
        except OSError as error:
            raise StorageError(f"{directory}: cannot be used: {error.strerror}") from error

    def sections(self) -> dict[str, dict[str, object]]:
        """Return what a bookie's configuration says of it. Bookies refuse clients without a certificate."""
        files: dict[str, object] = {
            "certificate_file": str(self._bookie.certificate_file),
            "key_file": str(self._bookie.key_file),
            "ca_file": str(self._ca_file),
        }
        return {
            "tls": {"mode": "require", "client_certificates": "require", **files},
            "http": {"tls": True},
        }

    def service_environment(self) -> dict[str, str]:
        """Return the variables for the processes beside the bookies."""
        return self._environment

    def _options(self, issued: Issued) -> TlsOptions:
        return TlsOptions(
            ca_file=str(self._ca_file),
            certificate_file=str(issued.certificate_file),
            key_file=str(issued.key_file),
        )
