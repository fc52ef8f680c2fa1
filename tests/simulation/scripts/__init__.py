"""The scenarios P1 to P33: each an exact interleaving, with what must hold, and the planted fault that it must notice.

Those about files and directories are played on real ones: P20 (several directories) in integration/test_pairs.py, P21
(partial listings) in unit/gc/test_dead_ledgers.py, P22 (log headers) in crash/test_gc_bad_headers.py, P23 (no syncs) in
crash/test_unclean_stop.py, P28 (roll-over) in crash/test_journal_faults.py, P29 (the mark) in
crash/test_store_faults.py, P30 and P31 (holes and lengths of the journal) in property/test_journal_format.py.
"""
