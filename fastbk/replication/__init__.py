"""The replication protocol as pure state machines: events in, actions out; drivers and simulator run the same code."""
