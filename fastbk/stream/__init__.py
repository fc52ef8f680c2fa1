"""Streams: unbounded sequences of records on ledgers. What they promise, and how: fastbk/stream/README.md."""
