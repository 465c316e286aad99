"""The HTTP client of the load generator: one thread, raw sockets, timestamps of the kernel.

    loop → connection → response → the endpoint's reader

``target`` is the server, ``loop`` waits for sockets and due times, ``response`` reads the response to a request in
flight, and ``exchange`` sends single requests.
"""
