"""The state of a whole cluster as values, a few seconds old: for `fastbk top`, the web console and scripts.

    async with fastbk.connect() as client, OverviewPoller(client) as poller:
        async for overview in poller.overviews(interval_s=2.0):   # overview: ClusterOverview
            for row in overview.bookies: ...                      # the sickest first

`values.py` has the values, `poller.py` reads the pages of bookies, `bookie_history.py` turns counters into rates,
`tables.py` shows the values as tables of text.
"""
