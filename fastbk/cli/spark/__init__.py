"""`fastbk spark JOB`: the options and the output of each job.

The jobs themselves are in `fastbk/spark/jobs`; nothing here computes. Begin with `command.py`.
"""
