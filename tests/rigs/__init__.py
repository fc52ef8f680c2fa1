"""The fault rigs: one workload (`script.py`), one judge (`judge.py`), several ways to make a disk fail under a bookie.

Each rig is a function that takes a `Plan` and returns a `Report` (`report.py`). `./dev torture` runs them all, the
tests beside them small versions. A rig never trusts the bookie's word on what was lost: it compares what is found after
a restart with what was acknowledged before.
"""
