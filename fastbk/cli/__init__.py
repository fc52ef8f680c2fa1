"""The commands of `fastbk`: they parse arguments, call the other packages, and print results.

Logic that a program could use without a terminal never lives here. Begin with `__main__.py`.
"""
