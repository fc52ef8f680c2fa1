"""The index process: takes batches in, answers reads, flushes."""
