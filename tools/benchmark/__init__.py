"""`./dev bench`: cases × systems, measured in turn; begin with `cases.py` and `systems.py`."""
