"""The verbs of Apache's `bookkeeper shell`: a thin layer over what fastbk's own commands do."""
