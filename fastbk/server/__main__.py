"""`python -m fastbk.server --config FILE`: the supervisor of one bookie, in the foreground."""

from __future__ import annotations

import argparse
import gc
import os
import socket
import sys
from pathlib import Path

from fastbk.errors import ConfigError, Error
from fastbk.exit_codes import FAILED, REFUSED, UNREACHABLE
from fastbk.native.process import arm_from_environment, confine
from fastbk.observe import logs
from fastbk.observe.event_log import EventLog
from fastbk.printable_text import printable_json
from fastbk.server.configuration import bookie_file
from fastbk.server.supervision.claim import Claim, claim_at_once

ACCEPT_DATA_LOSS = (
    "start although this bookie's data is gone for good: it says of no ledger that it held that something is missing,"
    " until `fastbk bookie recover` has repaired it; without effect when nothing is missing"
)


def main(arguments: list[str] | None = None) -> int:
    """Run a bookie until SIGTERM, SIGINT or the lifeline's end; return the exit code of `serve`."""
    parser = argparse.ArgumentParser(prog="fastbk bookie", description="Run one bookie.")
    parser.add_argument(
        "--config", "--conf", required=True, type=Path, help="its TOML file, or a .conf of Apache's"
    )
    parser.add_argument("--lifeline", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--accept-data-loss", action="store_true", help=ACCEPT_DATA_LOSS)
    options = parser.parse_args(arguments)
    return serve(options.config, options.lifeline, accept_data_loss=options.accept_data_loss)


def serve(
    path: Path, lifeline_descriptor: int | None = None, *, accept_data_loss: bool = False
) -> int:
    """Run the bookie that the file at `path` describes; return the exit code. Errors are one line on stderr.

    0: it was stopped. 1: it failed, and may be started again. 75: the metadata store does not answer, or the port or a
    directory is still in use. 78: its file or its directories do not allow a start.

    `accept_data_loss`: see `fastbk.server.identity.settle`.
    """
    os.umask(0o077)
    confine()
    arm_from_environment()
    logs.configure()
    logs.bind(role="supervisor")
    events = EventLog("", "supervisor")
    events.begin()
    lifeline = None if lifeline_descriptor is None else socket.socket(fileno=lifeline_descriptor)
    claim: Claim | None = None
    try:
        file = bookie_file.read(path)
        file.log()
        if zookeeper_file := file.config.metadata.zookeeper_file:
            from fastbk.meta.zookeeper.security import use_file

            use_file(zookeeper_file)  # for gc, too
        claim = claim_at_once(file.config)
        # The children import by now, and so does this process: no garbage, which nobody need look for meanwhile.
        gc.disable()
        import asyncio

        from fastbk.server.supervisor import Supervisor

        gc.freeze()
        gc.enable()
        supervisor = Supervisor(
            file.config, lifeline, claim, events, accept_data_loss=accept_data_loss
        )
        return asyncio.run(supervisor.run())
    except (Error, OSError) as error:
        if lifeline is not None:
            message = printable_json({"type": "failed", "reason": str(error)})
            try:
                lifeline.send(message)
            except OSError:
                pass
        logs.error("bookie.failed", reason=str(error))
        return _exit_code_of(error)
    finally:
        events.close()
        if claim is not None:
            claim.close()


def _exit_code_of(error: Error | OSError) -> int:
    from fastbk.model.cookie import CookieError
    from fastbk.native.ffi import FormatTooNewError
    from fastbk.storage.identity_check import IdentityError

    # What starting again does not change: only a person can.
    if isinstance(error, ConfigError | IdentityError | CookieError | FormatTooNewError):
        return REFUSED
    return UNREACHABLE if isinstance(error, Error) and error.retryable else FAILED


if __name__ == "__main__":
    sys.exit(main())
