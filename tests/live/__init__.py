"""Live torture: real bookies, real sockets, a nemesis, recorded histories and their checker.

`./dev torture ROUNDS=n` runs it; tests/crash/test_rigs.py runs a few rounds in CI.
"""
