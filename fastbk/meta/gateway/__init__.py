"""The metadata store behind a gateway, for clients that do not reach ZooKeeper. Begin with `store.py`."""
