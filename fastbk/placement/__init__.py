"""Policies that choose the bookies of a new fragment.

All functions are pure: nothing here does I/O or keeps state of a cluster. Begin with `choose_ensemble.py`.
"""
