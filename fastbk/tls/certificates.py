"""What certificates in files say: when they end, and which hosts they name."""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptography import x509

from fastbk.errors import ConfigError
from fastbk.tls.files import Stamp, TlsFiles, pem_of, stamp_of


def read_certificates(path: str, password_file: str = "") -> list[x509.Certificate]:
    """Return all certificates of a file, in its order. Raises ConfigError."""
    try:
        return x509.load_pem_x509_certificates(pem_of(path, password_file))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: no certificate can be read from it: {error}") from error


def end_s(path: str, password_file: str = "") -> float:
    """Return when the first certificate of a file ends, in seconds of Unix time. Raises ConfigError."""
    return min(one.not_valid_after_utc.timestamp() for one in read_certificates(path, password_file))


def names(path: str, password_file: str = "") -> list[str]:
    """Return the hosts and addresses that the file's own certificate names; wildcards too. Raises ConfigError."""
    own = read_certificates(path, password_file)[0]
    try:
        found = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = [str(one) for one in found.get_values_for_type(x509.IPAddress)]
    return found.get_values_for_type(x509.DNSName) + addresses


def passwords_of(files: TlsFiles) -> dict[str, str]:
    """Return the files that hold certificates, each with the file of its password, which may be ""."""
    both = {files.certificate_file: files.key_password_file, files.ca_file: files.ca_password_file}
    return {path: password_file for path, password_file in both.items() if path}


@dataclass
class CertificateEnds:
    """When the certificates of some files end; a file is read again when it has changed."""

    files: TlsFiles
    _known: dict[str, tuple[Stamp, float]] = field(default_factory=dict)

    def ends_s(self) -> dict[str, float]:
        """Return Unix time by path; NaN: the file cannot be read."""
        found = passwords_of(self.files)
        return {path: self._end_s(path, password_file) for path, password_file in found.items()}

    def _end_s(self, path: str, password_file: str) -> float:
        stamp = stamp_of([path])
        known = self._known.get(path)
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            found = end_s(path, password_file)
        except ConfigError:
            found = float("nan")
        self._known[path] = (stamp, found)
        return found
