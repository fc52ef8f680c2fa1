"""`fastbk top`: a cluster on a terminal, the sickest bookie first. `fastbk.overview` has what it
shows.
"""
