"""What operators do to a whole cluster: recover and retire bookies, see who holds what. Built on the client."""
