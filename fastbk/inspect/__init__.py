"""Reads what lies on a bookie's disks for people: without a running bookie, without a lock, without writing anything.

Every reader takes a file that may be torn, damaged, half overwritten or none of ours. It yields what it can vouch for
by checksum, says at which offset it cannot, and goes on behind that. Plain reads in pieces: a file larger than memory
is no trouble, and what a running bookie writes meanwhile at worst looks like a torn tail.

One module a kind of file. None of them shares code with what the bookie itself reads by, but for checksums and the
small files' decoders: a second reading of the formats in `fastbk/storage/README.md`.
"""
