"""The HTTP client of the load generator: one thread, raw sockets, timestamps of the kernel.

    loop → connection → response → the endpoint's reader

``target`` is the server and sends single requests, ``loop`` sends loads, ``response`` reads the response to a request
in flight.
"""
