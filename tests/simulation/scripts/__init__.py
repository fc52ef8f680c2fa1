"""The scenarios P1 to P33: each an exact interleaving, with what must hold, and the planted fault that it must notice.

P20 to P23 (checkpoints over several directories, garbage collection) come with storage. P28 to P31 are about files and
are played on the real ones: P28 (roll-over) in tests/crash/test_journal_faults.py, P29 (the mark) beside it in
test_store_faults.py, P30 and P31 (holes and lengths of the journal) in tests/property/test_journal_format.py.
"""
