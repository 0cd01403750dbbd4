"""Write models/schema.json, the JSON schema that editors use for the YAML files. Run after a change of the YAML's form."""

from __future__ import annotations

import json
from pathlib import Path

from ddtree.graph.schema import json_schema

FILE = Path(__file__).resolve().parents[1] / "models" / "schema.json"


def main() -> None:
    """Write the file."""
    FILE.write_text(json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {FILE}")


if __name__ == "__main__":
    main()
