"""Operations on a whole cluster: recover, repair and retire bookies, and report its state.

Nothing here parses a command line or reads a running bookie's files. Begin with `cluster.py` and
`healing.py`.
"""
