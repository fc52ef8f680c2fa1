"""What a server reads from its client's certificate: the roles, and when it ends. Nothing else of it is looked at.

A certificate comes from outside, and an authority signs what it is given: names that are no text, odd addresses. The
standard library turns all of it into Python's objects, and raises at what it cannot; so this reads DER itself, as far
as the subject, and never raises. That OpenSSL has verified the certificate is the caller's business.

Roles are named as for Apache's servers: the organizational unit is `0:writer,reader;1:cluster`. Field 0 has the roles,
and the first of them counts.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator

_ROLES_FIELD = "0"
_UNIT = b"\x55\x04\x0b"
"""2.5.4.11, organizationalUnitName."""
_SEQUENCE, _VERSION, _UTC_TIME, _GENERAL_TIME = 0x30, 0xA0, 0x17, 0x18
_CHARSETS = {
    0x0C: "utf-8",
    0x13: "ascii",
    0x16: "ascii",
    0x14: "latin-1",
    0x1E: "utf-16-be",
    0x1C: "utf-32-be",
}
"""Character sets of texts by their tags: UTF8String, PrintableString, IA5String, TeletexString, BMPString,
UniversalString.
"""
_TIME = re.compile(rb"(\d{2}|\d{4})(\d{2})(\d{2})(\d{2})(\d{2})(\d{2})Z")
_VALIDITY, _SUBJECT = 3, 4
"""Among the parts of a certificate without its version: number, algorithm, issuer, validity, subject."""

_Part = tuple[int, bytes]
"""A tag and its content."""


def first_role(certificate: bytes) -> str:
    """Return the first role of a certificate in DER (b"": there is none); "": none. The first unit counts."""
    try:
        for relative in _parts(_part_of(certificate, _SUBJECT, _SEQUENCE)):
            for _, attribute in _parts(relative[1]):
                (_, name), (tag, value) = _parts(attribute)
                if name == _UNIT:
                    return _role_of(value.decode(_CHARSETS[tag]))
    except (ValueError, KeyError):
        pass  # it is no certificate, or its unit is no text: it names no role
    return ""


def end_s(certificate: bytes) -> float:
    """Return when a certificate in DER ends, in seconds of Unix time; 0: that is not to be read from it."""
    try:
        _, (tag, text) = _parts(_part_of(certificate, _VALIDITY, _SEQUENCE))
        match = _TIME.fullmatch(text)
        if match is None or len(match[1]) != {_UTC_TIME: 2, _GENERAL_TIME: 4}[tag]:
            return 0.0
        year, *rest = (int(one) for one in match.groups())
        if tag == _UTC_TIME:
            year += 1900 if year >= 50 else 2000
        return float(calendar.timegm((year, *rest)))
    except (ValueError, KeyError):
        return 0.0


def _role_of(unit: str) -> str:
    for field in unit.split(";"):
        number, separator, roles = field.partition(":")
        if separator and number.strip() == _ROLES_FIELD:
            return roles.split(",")[0].strip()
    return ""


def _part_of(certificate: bytes, index: int, tag: int) -> bytes:
    """Return the content of one part of what is signed. Raises ValueError."""
    ((_, whole),) = _parts(certificate)
    signed = next(_parts(whole), (0, b""))[1]
    parts = [part for part in _parts(signed) if part[0] != _VERSION]
    if len(parts) <= index or parts[index][0] != tag:
        raise ValueError("no certificate")
    return parts[index][1]


def _parts(data: bytes) -> Iterator[_Part]:
    """Yield the parts that DER consists of. Raises ValueError."""
    offset = 0
    while offset < len(data):
        tag, size = data[offset], data[offset + 1] if offset + 1 < len(data) else 0x80
        offset += 2
        if size >= 0x80:
            count = size - 0x80
            if not 0 < count <= 4 or offset + count > len(data):
                raise ValueError("a length is cut, or none of DER")
            size = int.from_bytes(data[offset : offset + count], "big")
            offset += count
        if offset + size > len(data):
            raise ValueError("a part is cut")
        yield tag, data[offset : offset + size]
        offset += size
