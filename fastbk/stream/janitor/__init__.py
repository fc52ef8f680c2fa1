"""The janitor, and all that removes data: truncation, retention, deletion of segments and streams.

Nothing here appends or delivers records.
Begin with `janitor.py`; `retention.py` decides, without I/O, what is no longer needed.
"""
