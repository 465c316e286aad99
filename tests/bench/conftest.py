"""One stub for all tests here that ask one."""

from tests.bench.stub.fixtures import running_stub, stub

__all__ = ["running_stub", "stub"]
