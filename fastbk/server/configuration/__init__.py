"""A bookie's configuration: the sections of its file, and what each process gets of it.

Nothing here runs or opens anything but the file. Begin with `settings.py` and `bookie_file.py`.
"""
