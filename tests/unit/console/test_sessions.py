"""Sessions: who signs in, how long that lasts, and how often it may be tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastbk.console import sessions as module
from fastbk.console.sessions import (
    IDLE_S,
    LOCAL,
    REFRESH_S,
    Access,
    LoginLimit,
    Sessions,
    may_read,
    why_not_change,
)
from fastbk.errors import ConfigError
from fastbk.security.tokens import TokenError
from tests.fixtures.console import AUDIENCE, signed, with_tokens


class Clock:
    """Both clocks: seconds that a test moves."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def made(folder: Path, wall: Clock, clock: Clock) -> tuple[Access, Sessions]:
    options = with_tokens(folder)
    access = Access(AUDIENCE, options["token_keys_file"], options["revoked_file"], wall)
    return access, Sessions(access, clock)


def begun(access: Access, sessions: Sessions, *operations: str, **options: object) -> str:
    token = signed(*operations, **options).encode()
    return sessions.begin(access.sign_in(token), token).key


@pytest.fixture
def wall() -> Clock:
    import time

    return Clock(time.time())


def test_a_session_is_found_by_its_key_alone(tmp_path: Path, wall: Clock) -> None:
    access, sessions = made(tmp_path, wall, Clock())
    key = begun(access, sessions, "read")
    session, reason = sessions.find(key)
    assert session is not None
    assert (session.principal.name, reason) == ("token:alice", "")
    assert sessions.find(key[:-1] + "!") == (None, "")
    assert sessions.find("") == (None, "")


def test_a_session_ends_with_its_token(tmp_path: Path, wall: Clock) -> None:
    access, sessions = made(tmp_path, wall, Clock())
    key = begun(access, sessions, "read", lifetime_s=60)
    wall.now_s += 61
    session, reason = sessions.find(key)
    assert session is None
    assert "expired" in reason
    assert len(sessions) == 0


def test_a_session_ends_when_its_token_is_revoked(tmp_path: Path, wall: Clock) -> None:
    access, sessions = made(tmp_path, wall, Clock())
    key = begun(access, sessions, "read")
    (tmp_path / "revoked").write_text("token:alice\n")
    wall.now_s += REFRESH_S
    session, reason = sessions.find(key)
    assert session is None
    assert "revoked" in reason
    with pytest.raises(TokenError, match="revoked"):
        access.sign_in(signed("read").encode())


def test_an_idle_session_ends(tmp_path: Path, wall: Clock) -> None:
    clock = Clock()
    access, sessions = made(tmp_path, wall, clock)
    key = begun(access, sessions, "read", lifetime_s=10 * IDLE_S)
    clock.now_s += IDLE_S - 1
    assert sessions.find(key)[0] is not None
    clock.now_s += IDLE_S + 1
    assert sessions.find(key)[0] is None


def test_sessions_are_bounded(tmp_path: Path, wall: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_MAX", 2)
    access, sessions = made(tmp_path, wall, Clock())
    first, second = begun(access, sessions, "read"), begun(access, sessions, "read")
    sessions.find(first)
    begun(access, sessions, "read")
    assert sessions.find(second)[0] is None, "the one that was used longest ago makes room"
    assert sessions.find(first)[0] is not None


def test_a_form_key_is_of_one_session(tmp_path: Path, wall: Clock) -> None:
    access, sessions = made(tmp_path, wall, Clock())
    one, other = (sessions.find(begun(access, sessions, "read"))[0] for _ in range(2))
    assert one is not None
    assert other is not None
    assert sessions.is_form_key(one, sessions.form_key(one))
    assert not sessions.is_form_key(one, sessions.form_key(other))
    assert not sessions.is_form_key(one, "")
    assert not sessions.is_form_key(one, "grüße")


def test_without_keys_everybody_is_local_and_nothing_is_stored() -> None:
    sessions = Sessions(Access())
    session, _ = sessions.find("")
    assert session is not None
    assert session.principal is LOCAL
    again, _ = sessions.find(session.key)
    assert again is not None
    assert again.key == session.key
    assert len(sessions) == 0
    with pytest.raises(TokenError, match="no keys"):
        Access().sign_in(b"x")
    with pytest.raises(ConfigError, match="--token-keys"):
        Access(revoked_file="revoked")


def test_tries_to_sign_in_are_bounded_by_address_and_in_all() -> None:
    clock = Clock(100.0)
    limit = LoginLimit(clock)
    allowed = 0
    while (wait_s := limit.wait_s("a")) == 0:
        allowed += 1
        assert allowed < 100
    assert 0 < wait_s <= 2
    assert 3 <= allowed <= 8
    assert limit.wait_s("b") == 0, "others are not concerned"
    clock.now_s += wait_s
    assert limit.wait_s("a") == 0
    while limit.wait_s(f"c{allowed}") == 0:
        allowed += 1
        assert allowed < 200, "all addresses together are bounded, too"


def test_rights_and_namespaces_decide(tmp_path: Path, wall: Clock) -> None:
    access, _ = made(tmp_path, wall, Clock())
    reader, admin = (
        access.sign_in(signed("read").encode()),
        access.sign_in(signed("admin").encode()),
    )
    limited = access.sign_in(signed("admin", "read", namespaces=["shop*"]).encode())
    assert may_read(reader, "any")
    assert not may_read(admin, "any")
    assert may_read(limited, "shop/eu")
    assert not may_read(limited, "other")
    assert "no right to do that" in why_not_change(reader, None)
    assert (
        why_not_change(admin, None)
        == why_not_change(admin, "shop")
        == why_not_change(limited, "shop")
        == ""
    )
    assert "limited to namespaces" in why_not_change(limited, None)
    assert "not for the namespace other" in why_not_change(limited, "other")
