"""Load tests of a cluster with locust.

No other package imports this one, and locust is never a dependency of fastbk. Begin with README.md.
"""
