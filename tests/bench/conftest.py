"""One stub server for all tests of this folder."""

from tests.bench.stub.fixtures import running_stub, stub

__all__ = ["running_stub", "stub"]
