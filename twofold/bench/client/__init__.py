"""The HTTP client of the load generator: one thread, raw sockets, timestamps of the kernel.

    schedule → loop → connection → response → the endpoint's reader

``target`` is the server, ``schedule`` orders requests, ``loop`` waits for sockets and due times, ``flight`` is one
request in flight, and ``exchange`` sends single requests. ``response`` and ``flight`` use no sockets.
"""
