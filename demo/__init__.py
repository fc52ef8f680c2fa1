"""The demos: `./dev run` (`__main__.py`), `./dev stream-demo` (`streams.py`) and `./dev pipeline` (`pipeline`).

They are applications of the package, are not installed with it, and no library code lives here. Begin with
`__main__.py`: real data through three bookies, one of which is killed.
"""
