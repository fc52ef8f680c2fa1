"""Simulated clusters that heal themselves: the product's own auditors and workers, in simulated time."""
