"""The metadata gateway: it holds the session with the metadata store, and offers clients what their rights allow.

Access control lists of ZooKeeper know nodes, and not what a change of one means. A gateway compares a record before and
after a change, and requires the right that the difference needs: create, close, truncate and delete are told apart.
`docs/gateway.md` shows how to run one. `rules.py` and `ledger_rules.py` say what a change needs, `access.py` what a
client may do; `operations.py` applies both, `service.py` and `process.py` serve it over HTTP. The client's side is a
metadata store of its own: `fastbk.meta.gateway.store`.
"""
