"""Random damage to the YAML files: they load, or one line says why not. Nothing else ever happens."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddtree.errors import SpecError, UsageError
from tests.graph.spec import DRAFTER, MODELS, TARGET, check, copy_models

LINES = {name: (MODELS / name).read_text(encoding="utf-8").splitlines() for name in (TARGET, DRAFTER)}
WORDS = sorted({word for lines in LINES.values() for line in lines for word in re.findall(r"[\w.]+", line)})
ODD = ["", "0", "-1", "1e400", ".nan", "null", "true", "[]", "{}", "[[1]]", "{a: 1}", "x", "'", '"', "*a", "&a", "!t", "1..2",
       "a[b]", "9999999", "0.5", "heads", "2 ** 64", "heads / 0", "{layer}", "\t", "§", "|", ">", "- a", "a: b"]  # fmt: skip

place = st.integers(0, 10**6)
damage = st.tuples(
    st.sampled_from(["delete", "double", "swap", "indent", "outdent", "word", "value", "cut"]),
    st.sampled_from([TARGET, TARGET, DRAFTER]),
    place,
    place,
    st.sampled_from(WORDS + ODD * 3),
)


def _spoil(lines: list[str], kind: str, at: int, other: int, text: str) -> None:
    """Change one line. Lines without content are not worth it."""
    full = [i for i, line in enumerate(lines) if line.strip() and not line.strip().startswith("#")]
    if not full:
        return
    i, j = full[at % len(full)], full[other % len(full)]
    line = lines[i]
    if kind == "delete":
        del lines[i]
    elif kind == "double":
        lines.insert(i, line)
    elif kind == "swap":
        lines[i], lines[j] = lines[j], lines[i]
    elif kind == "indent":
        lines[i] = "  " + line
    elif kind == "outdent":
        lines[i] = line[2:]
    elif kind == "cut":
        lines[i] = line[: other % (len(line) + 1)]
    else:
        pattern = r"[\w.]+" if kind == "word" else r"(?<=: )[^,{}\[\]]+"
        found = list(re.finditer(pattern, line))
        if found:
            hit = found[other % len(found)]
            lines[i] = line[: hit.start()] + text + line[hit.end() :]


@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(damage, min_size=1, max_size=3))
def test_a_damaged_file_loads_or_is_refused_in_one_line(changes: list[tuple[str, str, int, int, str]]) -> None:
    files = {name: list(lines) for name, lines in LINES.items()}
    for kind, name, at, other, text in changes:
        _spoil(files[name], kind, at, other, text)
    with tempfile.TemporaryDirectory() as folder:
        target = copy_models(Path(folder))
        for name, lines in files.items():
            (Path(folder) / name).write_text("\n".join(lines), encoding="utf-8")
        try:
            check(target)
        except SpecError as error:
            assert re.match(rf"{re.escape(folder)}/[\w.]+:\d+:\d+: ", str(error)), error
            assert "\n" not in str(error)
            assert not re.search(r"pydantic|valid (integer|string|list|dict)|union|literal\[|function-", str(error)), (
                error
            )


key = st.sampled_from(["budget", "tree", "decode", "loop", "stop.ids", "block_size", "dims.hidden", "graph", "blocks", "text",
                       "parallel", "rope.main", "checkpoint.config", "constants.eps", "sequences", "context", "name", "drafter",
                       "blocks.mla.ops", "blocks.moe.ops[1].top_k", "graph[2].layers", "graph[2].blocks", "nothing"])  # fmt: skip


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(key, st.sampled_from(WORDS + ODD * 5)), min_size=1, max_size=2))
def test_a_setting_is_taken_or_refused_in_one_line(pairs: list[tuple[str, str]]) -> None:
    try:
        check(MODELS / TARGET, [f"{name}={text}" for name, text in pairs])
    except (SpecError, UsageError) as error:
        assert "\n" not in str(error)
