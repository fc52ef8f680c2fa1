"""The bookie's HTTP pages for machines."""
