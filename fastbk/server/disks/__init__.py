"""What a bookie knows of its disks: each looked at by the process that writes there, shown by the supervisor."""
