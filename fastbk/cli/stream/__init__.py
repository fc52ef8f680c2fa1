"""`fastbk stream`: creates, appends, reads and manages streams.

The logic of streams is never here; it is in `fastbk/stream`. Begin with `command.py`.
"""
