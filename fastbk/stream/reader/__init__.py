"""Readers of a stream, and searches for positions, numbers, ids and times.

Nothing here changes metadata or fences a writer.
Begin with `stream_reader.py`; `read_plan.py` decides, without I/O, which entry is next.
"""
