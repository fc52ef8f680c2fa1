"""The pipeline demo (`./dev pipeline`): package records through streams and Spark.

No other package imports this one, and no library code lives here. Begin with `__main__.py`.
"""
