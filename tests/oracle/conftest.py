"""Without the extra `oracle` these files are not collected, so that asking for the marker then fails: no test ran."""

from importlib.util import find_spec

if find_spec("torch") is None or find_spec("transformers") is None:
    collect_ignore_glob = ["test_*.py"]
