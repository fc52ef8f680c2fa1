"""Which HTTP requests are refused because a web page of another site may have caused them.

Many of these pages need no authentication on their own machine, so a browser there must not carry a stranger's request
to them. There are two ways to do that, and each has its check:

- DNS rebinding: the stranger's own name resolves to our address, so the browser takes us for the stranger's server and
  lets its page read the answer. Such a request names the stranger in `Host`. A name is accepted only if it is one of
  ours. An address is always accepted, since no name server can redirect an address.
- A request across sites: the page cannot read the answer, but the request is executed. Browsers mark it with
  `Sec-Fetch-Site`, `Origin` or `Referer`.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OWN_SITES = ("same-origin", "none")
"""`Sec-Fetch-Site` of a request that one of our pages made, or a person in the address bar."""

BROWSER_AGENT = "mozilla/"
"""How the `User-Agent` of every browser begins."""


class SiteGuard:
    """Knows by which names this server may be called."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names`: further names that clients use, without a port."""
        machine = socket.gethostname().lower()
        self._names = {"localhost", machine, machine.partition(".")[0]}
        self._names.update(name.lower().rstrip(".") for name in names if name)

    def refusal(
        self, headers: Mapping[str, str], *, changes: bool, any_host: bool = False
    ) -> tuple[str, str] | None:
        """Return the limit's name and the text for the client; None for a request that is fine.

        `headers` have lower-case names. `changes`: the request changes something though it is a GET. `any_host`: the
        page tells nothing that is worth a name of a stranger's.
        """
        host = headers.get("host", "")
        if not any_host and not self.is_own(host):
            return "host", (
                f'this server is not called "{name_of(host)[:255]}": use its address, or add the name'
                " to [http] allowed_hosts (janitor and autorecovery: --http-host)"
            )
        site = headers.get("sec-fetch-site")
        referer = headers.get("referer", "")
        is_foreign = (
            (site is not None and site not in OWN_SITES)
            or "origin" in headers
            or (referer != "" and _authority(referer) != host.lower())
            # Only secure origins get Sec-Fetch-Site, and a page may leave out its Referer.
            or (changes and site is None and _is_browser(headers))
        )
        if is_foreign:
            return "cross_site", "not for web pages: send the request without a browser"
        return None

    def is_own(self, host: str) -> bool:
        """Return whether a `Host` names this server. Browsers always send one; simple tools need not."""
        name = name_of(host)
        if not host or name in self._names:
            return True
        try:
            ipaddress.ip_address(name.partition("%")[0])
        except ValueError:
            return False
        return True


def name_of(host: str) -> str:
    """Return a `Host` without its port and brackets, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).rstrip(".")


def _authority(url: str) -> str:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


def _is_browser(headers: Mapping[str, str]) -> bool:
    return headers.get("user-agent", "").lower().startswith(BROWSER_AGENT)
