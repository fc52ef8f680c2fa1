"""Producers: any number append to one stream, through a write service (`fastbk serve`).

Begin with `producer.py`, which applications use. `window.py` is what it decides, without I/O; `service_links.py` has
the connections to services.
"""
