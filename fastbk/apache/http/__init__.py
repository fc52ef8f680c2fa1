"""The HTTP endpoints of Apache's bookies, with their paths and JSON (docs/http.md).

Pages of fastbk's own never live here; they are in `fastbk/server/admin`. Begin with `pages.py`.
"""
