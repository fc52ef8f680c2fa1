"""The bookie: a supervisor and the child processes that it starts.

Python does what is rare: files, policies, start and stop. Work for each entry is in C
(`fastbk/native`), and formats on disk are in `fastbk/storage`. Begin with `process_table.py` and
`supervisor.py`. `journal`, `index` and `network` are child processes, `supervision` has the
supervisor's parts, `admin` its HTTP pages, `disks` the checks of disks, `configuration` the
settings. `offline` changes the directories of a stopped bookie.
"""
