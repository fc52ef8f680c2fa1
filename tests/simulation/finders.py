"""For each planted fault the seed that found it, from fresh ones; `./dev sim MUTATIONS=1` looks for others."""

FINDERS: dict[str, int] = {}
