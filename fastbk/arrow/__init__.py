"""Ledgers and streams as Arrow record batches; needs the extra `arrow`. Nothing below `fastbk.spark` imports it."""
