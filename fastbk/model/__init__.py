"""Values and arithmetic of the replication model: no I/O, no clock, no third-party library."""
