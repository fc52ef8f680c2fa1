"""Upgrades of whole clusters: rolling restarts, and the format level that ends an upgrade.

`roll_plan.py` decides what a rolling upgrade does next and does no I/O. `roll.py` does it, and raises the format level.
"""
