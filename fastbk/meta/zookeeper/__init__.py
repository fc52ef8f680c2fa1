"""The metadata store in ZooKeeper, with Apache BookKeeper's nodes and bytes. Begin with `store.py`."""
