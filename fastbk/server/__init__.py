"""The bookie: a supervisor and the processes that it starts.

Python handles only what is rare; work for each entry is in C, and the formats on disk are in
`fastbk/storage`. Begin with `process_table.py` and `supervisor.py`. The folders
`journal`, `index` and `network` are processes, `supervision` has the supervisor's parts and
`configuration` the settings.
"""
