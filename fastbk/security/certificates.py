"""What certificates in files say: when they end, and which hosts they name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.x509.oid import NameOID

from fastbk.errors import ConfigError
from fastbk.security.tls import Stamp, TlsFiles, pem_of, stamp_of

_JAVA_KEYWORDS = {
    NameOID.COMMON_NAME: "CN",
    NameOID.COUNTRY_NAME: "C",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.USER_ID: "UID",
}
"""What Java has a word for in RFC 2253. It writes other attributes, such as an e-mail address, as bytes."""
_JAVA_ESCAPED = re.compile(r'[,=+<>#;"\\]|^ +| +$')


def read_certificates(path: str, password_file: str = "") -> list[x509.Certificate]:
    """Return all certificates of a file, in its order. Raises ConfigError."""
    try:
        return x509.load_pem_x509_certificates(pem_of(path, password_file))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: no certificate can be read from it: {error}") from error


def end_s(path: str, password_file: str = "") -> float:
    """Return when the first certificate of a file ends, in seconds of Unix time. Raises ConfigError."""
    return min(
        certificate.not_valid_after_utc.timestamp()
        for certificate in read_certificates(path, password_file)
    )


def names(path: str, password_file: str = "") -> list[str]:
    """Return the hosts and addresses that the file's own certificate names; wildcards too. Raises ConfigError."""
    own = read_certificates(path, password_file)[0]
    try:
        found = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = [str(one) for one in found.get_values_for_type(x509.IPAddress)]
    return found.get_values_for_type(x509.DNSName) + addresses


def java_subject(path: str) -> str:
    """Return the subject of a file's first certificate as Java, and so ZooKeeper, writes it. Raises ConfigError."""
    parts = []
    for relative in read_certificates(path)[0].subject.rdns:
        for attribute in relative:
            if attribute.oid not in _JAVA_KEYWORDS or not isinstance(attribute.value, str):
                raise ConfigError(
                    f"{path}: its subject has {attribute.rfc4514_attribute_name}, for which Java has no word: issue a"
                    f" certificate whose subject has only {', '.join(_JAVA_KEYWORDS.values())}"
                )
        texts = [f"{_JAVA_KEYWORDS[one.oid]}={_java_escaped(str(one.value))}" for one in relative]
        parts.append("+".join(texts))
    return ",".join(reversed(parts))


def _java_escaped(value: str) -> str:
    return _JAVA_ESCAPED.sub(lambda found: "".join(f"\\{one}" for one in found[0]), value)


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
        passwords = passwords_of(self.files)
        return {path: self._end_s(path, password_file) for path, password_file in passwords.items()}

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
