"""The index process: it takes batches from the journal, answers reads, and flushes.

Work for each entry is never here but in C, and no client connects to this process. Begin with
`process.py`.
"""
