"""HTTP connections and the checks before the endpoints.

    protocol    uvicorn's connections, with a time limit for each state; limits of heads, chunks and framing
    middleware  the first ASGI application: request ids, hosts, origins, keys, headers
    body        request bodies as plain data, limited in bytes, seconds, depth and values
    keys        API keys and their file
    quotas      limits of each key
    refusals    errors as responses in the format of the API; ids of requests

Every refusal is an error of ``core.errors``; a caller without a key gets no other information. Each connection takes
bounded memory.
"""
