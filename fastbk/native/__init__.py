"""The only door to the C code: typed faces of the extension modules, and what builds those."""
