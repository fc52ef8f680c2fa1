"""Reports slow commits and answers, with the part of the bookie that made them slow.

The flight recorder itself is never here; it is C code behind `fastbk/native/flight.py`. Begin with
`verdict.py`.
"""
