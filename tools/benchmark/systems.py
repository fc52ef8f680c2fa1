"""The systems of `./dev bench`, in the order in which reports have them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools import ROOT
from tools.benchmark import apache
from tools.benchmark.floor import Chain, Disk
from tools.benchmark.redis_streams import RedisStreams
from tools.benchmark.system import System
from tools.benchmark.trees import Tree, pinned_settings

THIS, CHAIN, TWICE, DISK = "this tree", "bare-C chain", "same, stored twice", "disk"
"""TWICE: the chain beside a process that writes as many bytes again, as a bookie's flush does."""
PINNED = "this tree, processors"


def previous() -> str:
    """Return what this tree is a change of: the last commit, or the one before where nothing was changed since."""
    command = ["git", "status", "--porcelain", "--untracked-files=no"]
    is_changed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return "HEAD" if is_changed else "HEAD^"


def commit_of(name: str) -> str:
    """Return the id of a commit. Raises SystemExit where it is none."""
    command = ["git", "rev-parse", "--verify", f"{name}^{{commit}}"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if found.returncode != 0:
        raise SystemExit(f"bench: AGAINST={name} is no commit here")
    return found.stdout.strip()


def check_out(sha: str) -> Path:
    """Return a set-up tree of a commit under build/against/, made if it is not there."""
    tree = worktree(sha)
    subprocess.run(["./dev", "setup"], cwd=tree, check=True)
    return tree


def worktree(sha: str) -> Path:
    """Return a tree of a commit under build/against/, made if it is not there; nothing is built."""
    tree = ROOT / "build" / "against" / sha[:12]
    if not tree.exists():
        tree.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        command = ["git", "worktree", "add", "--detach", str(tree), sha]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return tree


def default_systems(against: str) -> list[System]:
    """Return what every run measures; `against`: a commit, "none", or "" for `previous`."""
    found: list[System] = [Tree(THIS)]
    if against != "none":
        sha = commit_of(against or previous())
        found.append(Tree(against or f"before ({sha[:8]})", check_out(sha)))
    return [*found, Chain(CHAIN), Chain(TWICE, "twice"), Disk()]


def other_systems() -> list[System]:
    """Return what a run measures by name, or in full."""
    pinned = pinned_settings()
    return [
        *([Tree(PINNED, settings=pinned)] if pinned else []),
        *(Tree(f"this tree, Apache's v{version}", protocol=version) for version in (3, 2)),
        *apache.systems(),
        RedisStreams(),
    ]


def chosen_systems(words: str, against: str, *, is_full: bool) -> list[System]:
    """Return the systems to measure.

    Args:
        words: of names; this tree and those systems that have one of them, whatever their case. "": the default ones.
        against: see `default_systems`.
        is_full: all of them.

    Raises SystemExit where a word is of no name.
    """
    default = default_systems(against)
    if is_full:
        return [*default, *other_systems()]
    wanted = [word.strip().lower() for word in words.split(",") if word.strip()]
    if not wanted:
        return default
    every = [*default, *other_systems()]
    for word in wanted:
        if not any(word in system.name.lower() for system in every):
            raise SystemExit(
                f"bench: SYSTEMS={words}: no {word}; there are: {'; '.join(one.name for one in every)}"
            )
    this, *others = every
    return [this, *(one for one in others if any(word in one.name.lower() for word in wanted))]
