"""The streaming load: the same bytes as packing whole arrays, one pass over the files, bounded memory."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddtree.graph.build import build_ranks, steps_of
from ddtree.graph.model import Model, load
from ddtree.graph.step_graph import StepGraph
from ddtree.runtime import delivery, stream
from ddtree.runtime.delivery import HostSink
from ddtree.runtime.launches import pack_weights
from ddtree.runtime.load import folders, read_weights
from ddtree.runtime.packed import destinations, total_bytes, uses_of
from ddtree.runtime.stream import Job, stream_weights
from ddtree.runtime.weights.files import OpenFiles
from tests.fixtures.pair import DrafterShape, TargetShape, write_pair

TARGET = TargetShape(vocab=192, hidden=128, expert_width=128, dense_width=192, heads=8)
DRAFTER = DrafterShape(heads=4, kv_heads=4, width=128)


@pytest.fixture(scope="module")
def yaml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair"), TARGET, DRAFTER, seed=5)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A size at which the little matrices of a test are large ones, read in chunks."""
    monkeypatch.setattr(stream, "CHUNK", 1 << 14)


def ranks_of(model: Model) -> list[list[StepGraph]]:
    """Every step's graph, by rank."""
    return [list(graphs) for graphs in zip(*(build_ranks(model, step) for step in steps_of(model)), strict=True)]


def streamed(
    model: Model, graphs: list[StepGraph], ranks: list[int], *, rearranges: bool = False, **options: Any
) -> dict[int, HostSink]:
    sinks = {rank: HostSink(rearranges=rearranges) for rank in ranks}
    stream_weights(model, folders(model, None, None), graphs, sinks, **options)
    return sinks


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_every_rank_gets_what_packing_its_whole_arrays_gives(yaml: Path, small: None, tp: int) -> None:
    model = load(yaml, ranks=tp)
    graphs = ranks_of(model)
    sinks = streamed(model, graphs[0], list(range(tp)))
    for rank, sink in sinks.items():
        weights = {n: w for g in graphs[rank] for n, w in g.weights().items()}
        want = pack_weights(graphs[rank], read_weights(model, folders(model, None, None), weights))
        assert sink.arrays.keys() == want.keys()
        for place, array in want.items():
            assert sink.arrays[place].tobytes() == np.ascontiguousarray(array).tobytes(), place
    raw = streamed(model, graphs[0], list(range(tp)), rearranges=True)
    assert all((raw[r].arrays[p] == array).all() for r, sink in sinks.items() for p, array in sink.arrays.items())
    alone = streamed(model, graphs[0], [tp - 1])[tp - 1]
    assert all((alone.arrays[place] == array).all() for place, array in sinks[tp - 1].arrays.items())


def test_sizes_are_known_before_a_file_is_read(yaml: Path) -> None:
    model = load(yaml, ranks=2)
    graphs = ranks_of(model)[0]
    sink = streamed(model, graphs, [0])[0]
    sizes = {place: array.nbytes for place, array in sink.arrays.items()}
    assert {place: d.nbytes for d in destinations(uses_of(graphs)) for place in d.places} == sizes
    own = {id(array): array.nbytes for array in sink.arrays.values()}
    assert total_bytes(uses_of(graphs)) == sum(own.values())


def test_every_byte_is_read_once_for_all_ranks(yaml: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(yaml, ranks=4)
    seen: dict[str, list[tuple[int, int]]] = {}
    read = OpenFiles.read

    def counted(self: OpenFiles, entry: Any, rows: slice | None = None) -> np.ndarray:
        span = (rows.start, rows.stop) if rows else (0, entry.shape[0])
        seen.setdefault(entry.name, []).append(span)
        return read(self, entry, rows)

    monkeypatch.setattr(OpenFiles, "read", counted)
    steps: list[tuple[str, int, int]] = []
    streamed(model, ranks_of(model)[0], [0, 1, 2, 3], progress=lambda *step: steps.append(step))
    assert any(len(spans) > 2 for spans in seen.values())
    for spans in seen.values():
        spans.sort()
        assert spans[0][0] == 0
        assert all(a[1] == b[0] for a, b in pairwise(spans))
    for what in ("weights", "drafter"):
        mine = [(done, total) for name, done, total in steps if name == what]
        assert mine == sorted(mine) and mine[-1][0] == mine[-1][1]


def test_one_rank_reads_only_its_rows(yaml: Path) -> None:
    model = load(yaml, ranks=4)
    totals = []
    for ranks in ([0, 1, 2, 3], [2]):
        steps: list[tuple[str, int, int]] = []
        streamed(model, ranks_of(model)[0], ranks, progress=lambda *step, to=steps: to.append(step))
        totals.append(max(total for what, _, total in steps if what == "weights"))
    assert totals[1] < 0.75 * totals[0]


def test_memory_under_way_is_bounded(yaml: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(yaml, ranks=2)
    limit, under_way, most = 200_000, deque[Job](), 0
    submit = delivery.ThreadPoolExecutor.submit

    def started(self: Any, work: Any, job: Job, *rest: Any) -> Any:
        nonlocal most
        if not isinstance(job, Job):  # a rank's part of one
            return submit(self, work, job, *rest)
        under_way.append(job)
        held = sum(job.memory for job in under_way)
        assert held <= limit or len(under_way) == 1  # a job that is larger than the limit runs alone
        most = max(most, min(held, limit))
        return submit(self, work, job, *rest)

    monkeypatch.setattr(delivery.ThreadPoolExecutor, "submit", started)
    streamed(model, ranks_of(model)[0], [0, 1], progress=lambda *_: under_way.popleft(), memory=limit)
    assert not under_way and most > limit // 2


def test_a_layout_that_mixes_rows_is_packed_whole(yaml: Path, small: None) -> None:
    """kv_b holds every head's two matrices: its rows do not stand one behind the other in either use."""
    uses = [u for of_weight in uses_of(ranks_of(load(yaml))[0]).values() for u in of_weight]
    single = [u for u in uses if u.packs and not u.weight.count]
    by_rows = {u.key: u.form().block is not None for u in single}
    assert by_rows["linear.weight"] and not by_rows["mla_query.weight"] and not by_rows["mla_value.weight"]


def test_a_gpu_is_sent_little_but_raw_bytes(yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sent = load(yaml, ranks=2), {"raw": 0, "packed": 0}

    class Counting(HostSink):
        def write(self, place: Any, offset: int, data: np.ndarray) -> None:
            sent["packed"] += data.nbytes

        def rearrange(self, place: Any, offset: int, raw: np.ndarray, order: Any) -> None:
            sent["raw"] += raw.nbytes

    graphs = ranks_of(model)[0]
    stream_weights(model, folders(model, None, None), graphs, {0: Counting(rearranges=True)})
    experts = sum(w.nbytes for g in graphs for w in g.weights().values() if w.count)
    assert sent["raw"] > experts > 0 and sent["raw"] > sent["packed"]
