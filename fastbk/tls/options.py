"""How a client uses TLS: `fastbk.connect(uri, tls=TlsOptions(...))`, or the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from fastbk.errors import ConfigError
from fastbk.tls.contexts import RefreshedContext, client_context
from fastbk.tls.files import TlsFiles

SWITCH = "FASTBK_TLS"
_PATHS = {
    "ca_file": "FASTBK_TLS_CA_FILE",
    "certificate_file": "FASTBK_TLS_CERTIFICATE_FILE",
    "key_file": "FASTBK_TLS_KEY_FILE",
    "key_password_file": "FASTBK_TLS_KEY_PASSWORD_FILE",
    "ca_password_file": "FASTBK_TLS_CA_PASSWORD_FILE",
}
_VERIFY_NAME = "FASTBK_TLS_VERIFY_NAME"
_SWITCHES = {"": None, "0": False, "1": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions(TlsFiles):
    """TLS to bookies. Their certificates are always verified, and nothing is ever sent in the clear instead.

    Without `ca_file` the system's authorities count. Certificate and key are for bookies that want their clients'.

    Attributes:
        verify_name: whether a bookie's certificate must name the host that it is reached by.
    """

    verify_name: bool = True

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> TlsOptions | None:
        """Return what FASTBK_TLS and FASTBK_TLS_... say; None: no TLS. Raises ConfigError.

        A path switches TLS on; FASTBK_TLS=1 does with the system's authorities, FASTBK_TLS=0 switches it off.
        """
        environment = os.environ if environment is None else environment
        paths = {field: environment.get(name, "") for field, name in _PATHS.items()}
        is_on = _switch(environment, SWITCH)
        if is_on is False or (is_on is None and not any(paths.values())):
            return None
        return cls(**paths, verify_name=_switch(environment, _VERIFY_NAME) is not False)

    def environment(self) -> dict[str, str]:
        """Return the variables that `from_environment` makes the same of."""
        paths = {name: getattr(self, field) for field, name in _PATHS.items()}
        verify = {} if self.verify_name else {_VERIFY_NAME: "0"}
        return {SWITCH: "1", **{name: path for name, path in paths.items() if path}, **verify}

    def context(self) -> RefreshedContext:
        """Return the context of connections; files that change are read anew. Raises ConfigError."""
        return RefreshedContext(self, lambda: client_context(self, verify_name=self.verify_name))


def _switch(environment: Mapping[str, str], name: str) -> bool | None:
    text = environment.get(name, "")
    if text not in _SWITCHES:
        raise ConfigError(f"{name}={text!r}: must be 0 or 1")
    return _SWITCHES[text]
