"""Authentication: who a client is, by a signed token or by SASL, and what a role may do. No I/O but reading files.

Certificates are TLS's (`fastbk.tls`); what a bookie does with all three is `fastbk.server.network.admission`.
"""
