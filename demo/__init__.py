"""The demos: `./dev run` (`__main__.py`), `./dev stream-demo` (`streams.py`) and `./dev pipeline` (`pipeline`).

They use the package as applications do: they are not installed with it, and no library code lives here. Each starts
bookies of its own, as `fastbk dev` does, and needs no running cluster. Begin with `__main__.py`: real data through
three bookies, one of which is killed.
"""
