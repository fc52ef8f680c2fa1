"""The chain of a stream: its segments as one record of metadata, and the ledgers that it names.

No records of users are written or read here, and nothing here knows writers, readers or cursors.
Begin with `chain.py` (the value, and what may change) and `opening.py` (a new epoch).
"""
