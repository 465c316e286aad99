"""A server that responds as the body of each request says, and records what it did and when.

script.py   what a request asks of the stub, as data: ``Script`` and ``Step``
voices.py   the same in the words of each dialect
wire.py     a script as bytes and when they leave
truth.py    what was done: moments on the monotonic clock, which all processes of a machine share
server.py   the loop, in a process of its own
live.py     ``stub_server``: starts it, and asks it for the truth
"""
