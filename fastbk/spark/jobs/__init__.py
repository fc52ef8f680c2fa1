"""Spark jobs over a cluster's data: `fastbk spark NAME`, or `spark-submit` of a module.

The data source itself never lives here. Begin with the job's own module, such as `audit.py`.
"""
