"""The checkpoint's own `config.json` against what the YAML says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from ddtree.errors import WeightsError
from ddtree.runtime.weights import strict_json
from ddtree.runtime.weights.strict_json import shown

_ABSENT = object()
_SHOWN = 3


def check_config(
    path: str | Path,
    expected: Mapping[str, object],
    yaml_lines: Callable[[str], str],
    *,
    optional: Collection[str] = (),
) -> None:
    """Compare `config.json` with values from the YAML; WeightsError names the YAML lines to change.

    expected    values by dotted key of the config, for example `dflash_config.target_layer_ids`; sequences compare as
                lists, 256 equals 256.0, a bool equals no number, None equals null alone
    yaml_lines  gives `file:line:column` of the YAML value that stands behind a dotted key
    optional    keys that the config may lack; a key that is present must agree all the same
    """
    config = strict_json.read(Path(path))
    faults = []
    for key, want in expected.items():
        found = _find(config, key)
        if found is _ABSENT and key in optional:
            continue
        if found is _ABSENT or not _equal(want, found):
            value = "no such key" if found is _ABSENT else shown(found)
            faults.append(f"{yaml_lines(key)} gives {key} = {shown(_plain(want))}, found {value}")
    if faults:
        more = f" ({len(faults) - _SHOWN} more)" if len(faults) > _SHOWN else ""
        raise WeightsError(
            f"{path}: the YAML does not describe this checkpoint: {'; '.join(faults[:_SHOWN])}{more}; "
            "change that line or use the checkpoint that it describes"
        )


def _find(config: object, key: str) -> object:
    """Value under the dotted `key`; a key that itself contains dots is found as it stands."""
    if isinstance(config, dict):
        if key in config:
            return config[key]
        head, _, rest = key.partition(".")
        if rest and head in config:
            return _find(config[head], rest)
    return _ABSENT


def _equal(want: object, found: object) -> bool:
    if isinstance(want, list | tuple) and isinstance(found, list):
        return len(want) == len(found) and all(map(_equal, want, found))
    if isinstance(want, Mapping) and isinstance(found, dict):
        return want.keys() == found.keys() and all(_equal(value, found[key]) for key, value in want.items())
    return isinstance(want, bool) == isinstance(found, bool) and want == found


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
