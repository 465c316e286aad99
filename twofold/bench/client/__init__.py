"""The client that keeps up: one thread, raw sockets, moments from the kernel.

    schedule → loop → connection → response → events → the endpoint's reader

``target`` says where the server is, ``schedule`` what is sent next, ``loop`` waits for sockets and times, ``flight`` is
one request under way. ``exchange`` is the plain request of a probe. Everything that reads bytes is free of sockets.
"""
