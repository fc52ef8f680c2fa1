"""Lets Spark find `format("fastbk")` without being told: it looks for `DefaultSource` in packages named `pyspark_…`."""

from fastbk.spark.source import FastbkSource as DefaultSource

__all__ = ["DefaultSource"]
