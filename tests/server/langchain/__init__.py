"""LangChain's standard tests of its clients."""
