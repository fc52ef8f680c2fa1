"""The scenarios P1 to P33: each an exact interleaving, with what must hold, and the planted fault that it must notice.

P20 to P23 (checkpoints over several directories, garbage collection) come with storage. P28 to P31 (roll-over, marks,
scans and lengths of the journal) are tested on the real journal, in tests/crash and tests/native.
"""
