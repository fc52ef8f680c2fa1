"""Jobs over the whole data of a cluster, each a thin script: `fastbk spark NAME`, or `spark-submit` of its module."""
