"""HTTP of every service: the listener, the server, whom it serves, and the client.

The pages themselves lie with the service that answers them; `page_server.py` is what they are added to.
"""
