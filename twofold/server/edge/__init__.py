"""HTTP connections and the checks before the endpoints.

    connection  limits of an HTTP request for h11: heads, chunks, framing
    protocol    uvicorn's connections, with a time limit for each state
    middleware  the first ASGI application: request ids, hosts, origins, keys, headers
    body        request bodies as plain data, limited in bytes, seconds, depth and values
    keys        API keys; keyfile: the file of keys
    quotas      limits of each key
    refusals    errors as responses in the format of the API

Every refusal is an error of ``core.errors``; a caller without a key gets no other information. Each connection takes
bounded memory.
"""
