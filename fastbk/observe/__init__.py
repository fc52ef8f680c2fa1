"""What can be seen of a running bookie: log lines, and the names of its counters."""
