"""ddtree: declarative inference engine for speculative decoding with draft trees."""

__version__ = "0.1.0"
