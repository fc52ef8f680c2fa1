"""The gc process: which ledgers here does metadata no longer list?"""
