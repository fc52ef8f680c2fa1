"""The network worker process: connections on one side, rings on the other. All per-entry work is in C."""
