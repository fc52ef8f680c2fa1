"""`fastbk console`: a web page that shows a cluster and changes it under the user's own name.

`process.py` is the service, and says which path is which page. `pages.py` has the pages. `cluster_view.py`
reads the cluster in the background, so pages answer from memory. `sessions.py` and the guard of `http_engine.py` decide
who is served what. `actions.py` is all that changes anything.
"""
