"""The writer of a stream: queue, entries in flight, segments, and the form without `await`.

Nothing here reads records or deletes closed segments.
Begin with `stream_writer.py`; when a stream rolls to a new segment is in `engine.py`.
"""
