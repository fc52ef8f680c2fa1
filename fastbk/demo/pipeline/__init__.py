"""The data pipeline's demo (`./dev pipeline`): this machine's package records through streams, Spark and back."""
