"""Which bookies hold a new fragment: policies over what is known of the bookies; pure functions, no I/O."""
