"""Who a client is, and what it may do: the part of it that bookies, gateways, consoles and clients share.

| question | file |
|---|---|
| Which TLS is spoken, with which files? | `tls.py` |
| What does a server read in its client's certificate? | `peer_certificate.py` |
| When does a certificate in a file end, and whom does it name? | `certificates.py` |
| What is in a token, and in the tag of a ledger? | `tokens.py` |
| How does a user prove a password? | `digest_md5.py` |
| How does a client of ours authenticate itself? | `credentials.py` |
| Which rights and roles are there, and who is a principal? | `rights.py` |
| Who is served, and with which rights? | `admission.py` |
| Which keys, users and revocations count now? | `auth_files.py` |
| Who was let in, refused, or changed something? | `audit_log.py` |
| Which settings are there? | `settings.py` |
| Who signs certificates for trials? | `authority.py` |
"""
