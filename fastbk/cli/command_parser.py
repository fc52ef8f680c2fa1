"""The argument parser of all commands: argparse's, with a hint when a verb is misspelt."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import NoReturn

WRONG_VERB = re.compile(r"argument [^-]\S*: invalid choice: '([^']*)'")


class CommandParser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` that names the nearest verb. Its subparsers are of this class, too."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and end with code 2."""
        wrong = WRONG_VERB.match(message)
        verbs = [name for action in self._actions for name in _verbs_of(action)]
        if wrong and verbs:
            near = difflib.get_close_matches(wrong[1], verbs, n=1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(verbs)}"
            message = f"no verb {wrong[1]!r}: {hint}"
        super().error(message)


def _verbs_of(action: argparse.Action) -> list[str]:
    return list(action.choices) if isinstance(action, argparse._SubParsersAction) else []
