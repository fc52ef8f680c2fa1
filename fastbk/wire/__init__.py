"""fastbk's client protocol: its schema, the generated code, and typed messages.

Sockets never live here, and neither does Apache's protocol. Begin with README.md, which describes
the protocol.
"""
