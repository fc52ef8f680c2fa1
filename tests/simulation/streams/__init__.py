"""Streams in simulation: the product's own asyncio code on a loop whose time jumps, over ledgers in memory."""
