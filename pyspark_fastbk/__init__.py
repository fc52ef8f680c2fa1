"""Lets Spark find `format("fastbk")`: it looks for `DefaultSource` in packages `pyspark_…`.

The code of the data source never lives here. Begin with `fastbk/spark`.
"""

from fastbk.spark.source import FastbkSource as DefaultSource

__all__ = ["DefaultSource"]
