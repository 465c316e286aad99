"""What stands between the sockets and the server's endpoints.

    connection  what h11 may take for a request: bounded heads, chunks and framing
    protocol    uvicorn's connections, each with a time limit for every state that it can be in
    door        the ASGI application in front of all others: request ids, hosts, origins, keys, headers
    body        whole request bodies as plain data, bounded in bytes, seconds, depth and values
    keys        who may come in; keyfile: the file of keys
    quotas      how much each key may ask for
    refusals    errors as responses, in the words of the dialect that a path speaks

Everything here refuses with an error of ``core.errors``, tells nothing to who has no key, and holds a bounded amount
of memory for each connection.
"""
