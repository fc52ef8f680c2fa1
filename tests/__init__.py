"""The tests. `python -m tests` runs them by tiers."""

SERVICE_FOLDERS = ("integration", "crash")
"""The folders whose tests start real processes: `slow` and `service` unless they say `fast`. No other test is that."""
