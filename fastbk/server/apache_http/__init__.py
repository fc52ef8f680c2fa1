"""The HTTP endpoints of Apache's bookies, by their paths, methods, statuses and JSON (docs/http.md)."""
