"""The journal process: one order for everything a bookie stores."""
