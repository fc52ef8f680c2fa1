"""TLS by the standard library's `ssl`: which versions and ciphers, from which files, and those files read anew.

Begin with `contexts.py`.
"""
