"""The mock engine's fixtures."""

from tests.engine.conftest import make_llm, make_loaded, tokenizer

__all__ = ["make_llm", "make_loaded", "tokenizer"]
