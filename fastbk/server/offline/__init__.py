"""Changes to a stopped bookie: more directories, another id, shards in another pair.

Nothing here runs while the bookie does: each change holds the locks of all directories. Begin with
`shard_moves.py`.
"""
