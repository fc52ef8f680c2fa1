"""The metadata gateway: it holds the session with the metadata store, and offers clients what their rights allow.

Access control lists of ZooKeeper know nodes, and not what a change of one means. A gateway compares a record before and
after a change, and requires the right that the difference needs: create, close, truncate and delete are told apart.
`docs/gateway.md` shows how to run one. `ledger_rules.py`, `chain_rules.py` and `record_rules.py` are the rules;
`operations.py` applies them, `service.py` and `connections.py` serve them over HTTP. The client's side is a metadata
store of its own: `fastbk.meta.gateway.store`.
"""
