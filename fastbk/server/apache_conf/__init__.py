"""A bookie's configuration from Apache BookKeeper's `bk_server.conf` and `BK_` environment variables.

`source` reads both, `table` says what becomes of each key, `translate` makes a `BookieConfig` of it and tells what it
did (`report`). The supervisor and the tools come here through `fastbk.server.bookie_file`.
"""
