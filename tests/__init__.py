"""The tests. `python -m tests` runs them by tiers."""

SERVICE_FOLDERS = ("integration", "crash")
"""The folders whose tests start real processes: `service` unless they say `no_service`. No other test is that."""

FAST_FOLDERS = ("style", "unit", "property", "native")
"""The folders of the FAST tier, which leaves out what is marked `slow` there."""
