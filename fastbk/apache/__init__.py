"""What a cluster of Apache BookKeeper needs: its configuration, HTTP endpoints, files and shell.

Each folder sits in a layer of its own, and Apache's network protocols are never here (`fastbk/wire`, the
worker in C and `fastbk/meta`). Begin with the folder of the thing that you know: `configuration` reads
`bk_server.conf`, `http` answers `/api/v1`, `importer` reads a bookie's directories, `shell` has the verbs.
"""
