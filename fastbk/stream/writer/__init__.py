"""The writer of a stream: queue, entries in flight and segments. Its form without `await` is in `stream/sync.py`.

Nothing here reads records or deletes closed segments.
Begin with `stream_writer.py`; when a stream rolls to a new segment is in `engine.py`.
"""
