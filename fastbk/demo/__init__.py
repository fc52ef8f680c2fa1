"""The main job (`./dev run`): real data through three bookies, one of which is killed.

No other package imports this one, and no library code lives here. Begin with `__main__.py`.
"""
