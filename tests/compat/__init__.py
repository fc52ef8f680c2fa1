"""`./dev compat`: the real Java clients, tools and bookies of Apache BookKeeper beside ours. See README.md."""
