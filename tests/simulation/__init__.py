"""Whole clusters in one thread from one seed: the product's protocol machines over a simulated network, disks and time.

`kernel.py` has the heap of events, `network.py` links and connections, `bookie.py`, `client.py`, `store.py` the nodes;
`plan.py` draws what happens from a seed, `faults.py` does it; `checks_*.py` know every invariant by name.
"""
