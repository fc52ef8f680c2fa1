"""Translates Apache's `bk_server.conf` and `BK_` variables into a bookie's configuration.

Settings of fastbk's own format never live here; they are in `fastbk/server/configuration/settings.py`. Begin with
`key_translation.py` and the table of keys in `keys.py`.
"""
