"""Ranks that share one GPU: messages by the thousand, ranks that do not come, and kimi-tiny on 1, 2, 4 and 8 of them."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddtree.errors import DeviceError
from ddtree.graph import yaml_text
from ddtree.graph.build import build_step
from ddtree.graph.model import Model, load
from ddtree.graph.numerics import round_bf16
from ddtree.graph.ops import AllReduce
from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.cuda.group import Links, group_decoder, group_steps, require_room, share_of
from ddtree.runtime.cuda.module import Call
from ddtree.runtime.cuda.replay import Replay
from ddtree.runtime.decoder import Sampling
from ddtree.runtime.launches import launches
from ddtree.runtime.load import folders, make_decoder
from ddtree.templates.render import render
from tests.fixtures.wide import wide_model
from tests.gpu.harness import _function, _Key
from tests.gpu.test_generation import GOLDENS, SAMPLED, YAML, run
from tests.ops.harness import make, tensor
from tests.ops.together import ONE_SHOT_FIELD

WIDTH, ROWS = 256, 16
PROMPTS = [g["prompt_ids"] for g in GOLDENS[:4]]


@contextmanager
def opened(count: int) -> Iterator[list[Device]]:
    """The GPU, opened once for each rank."""
    devices = [Device() for _ in range(count)]
    try:
        yield devices
    finally:
        for device in devices:
            device.close()


class Storm:
    """One graph per rank of all-reduces of the given numbers of rows, each on memory of its own: [messages, ROWS, WIDTH]."""

    def __init__(self, devices: Sequence[Device], counts: Sequence[int]) -> None:
        self.devices, self.shape = devices, (len(counts), ROWS, WIDTH)
        op: Any = make(AllReduce, x=tensor(ROWS, WIDTH), ranks=len(devices))
        (kernel,) = render(op, share_of(devices[0].target, len(devices)), tree=True)
        function = _function(devices[0], kernel.source, kernel.name, _Key(kernel))
        self.links = Links(devices, [op], one_shot=1 << 20)
        tables = {n: self._table(n) for n in set(counts)}
        size = ROWS * WIDTH * 2
        self.x = [d.alloc(len(counts) * size, "x") for d in devices]
        self.y = [d.alloc(len(counts) * size, "y") for d in devices]
        self.graphs = []
        for rank, device in enumerate(devices):
            x, y, group = self.x[rank], self.y[rank], self.links.addresses[rank]
            calls = [
                Call(function, kernel.tile, [x + m * size, tables[n], group, y + m * size])
                for m, n in enumerate(counts)
            ]
            self.graphs.append(Replay(device, lambda d=device, c=calls: [k.launch(d.stream, early=False) for k in c]))  # type: ignore[misc]

    def _table(self, rows: int) -> int:
        packed = struct.pack("4i8P", rows, rows, rows, 0, *[0] * 8)
        return self.devices[0].upload(np.frombuffer(packed, np.uint8), "rows")

    def send_whole(self, nbytes: int) -> None:
        """Messages of up to so many bytes go in one shot."""
        for device, group in zip(self.devices, self.links.addresses, strict=True):
            device.write(group + ONE_SHOT_FIELD, np.array([nbytes // 16], np.uint32))

    def write(self, parts: np.ndarray) -> None:
        """Every rank's x, as bits."""
        for device, at, part in zip(self.devices, self.x, parts, strict=True):
            device.write(at, part)

    def launch(self) -> None:
        for graph in self.graphs:
            graph.launch()

    def results(self) -> np.ndarray:
        """Every rank's y, as bits."""
        for device in self.devices:
            device.synchronize("a storm of messages")
        self.links.check("a storm of messages")
        return np.stack([d.read(at, self.shape, np.uint16) for d, at in zip(self.devices, self.y, strict=True)])


def random_bits(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """BF16 of both signs and magnitudes from 2**-15 to 2**15, so that the order of a sum shows."""
    exponent = rng.integers(112, 143, shape, dtype=np.uint16)
    return exponent << np.uint16(7) | rng.integers(0, 1 << 16, shape, dtype=np.uint16) & np.uint16(0x807F)


def summed(parts: np.ndarray) -> np.ndarray:
    """The sum in rank order in fp32, rounded once, as bits."""
    total = np.zeros(parts.shape[1:], np.float32)
    for part in parts:
        total += (part.astype(np.uint32) << 16).view(np.float32)
    return (round_bf16(total).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ten_thousand_random_messages(ranks: int, device: Device) -> None:
    rng = np.random.default_rng(ranks)
    counts = rng.integers(1, ROWS + 1, 500).tolist()
    live = np.arange(ROWS) < np.array(counts)[:, None]
    with opened(ranks) as devices:
        storm = Storm(devices, counts)
        for _ in range(20):
            parts = random_bits(rng, (ranks, *storm.shape))
            storm.write(parts)
            want = summed(parts)[live]
            for one_shot in (1 << 20, 0):
                storm.send_whole(one_shot)
                storm.launch()
                for rank, made in enumerate(storm.results()):
                    assert (made[live] == want).all(), f"rank {rank}, {'one shot' if one_shot else 'two shots'}"


def test_a_million_messages(device: Device) -> None:
    """A thousand launches of a graph of a thousand: the buffers' turns go on from launch to launch."""
    counts = [1 + m % 3 for m in range(1000)]
    with opened(2) as devices:
        storm = Storm(devices, counts)
        storm.send_whole(2 * WIDTH * 2)  # one and two rows in one shot, three in two
        parts = random_bits(np.random.default_rng(0), (2, *storm.shape))
        storm.write(parts)
        live = np.arange(ROWS) < np.array(counts)[:, None]
        for turn in range(1000):
            storm.launch()
            if turn % 100 == 99:
                assert all((made[live] == summed(parts)[live]).all() for made in storm.results())


@pytest.mark.parametrize("absent", [0, 1])
def test_a_rank_that_does_not_come_is_named_in_time(absent: int, device: Device) -> None:
    model = load(YAML, draft=False, ranks=2)
    with opened(2) as devices:
        steps, _ = group_steps(model, folders(model, None, None), devices)
        d = make_decoder(model, steps, [])
        d.start(PROMPTS[0], Sampling(), 8)
        d.round()
        begin = time.monotonic()
        with pytest.raises(DeviceError, match=rf"waited 2 s for rank {absent}; all have ended"):
            steps["verify"].launch([1 - absent])
        assert time.monotonic() - begin < 5


def test_ranks_that_do_not_fit_are_refused(device: Device) -> None:
    plan = launches(build_step(load(YAML, ranks=2), "verify"), device.target, {})
    with pytest.raises(DeviceError, match=r"64 ranks on one GPU: \d+ blocks of kernel \w+ on each of them wait"):
        require_room([plan], device.sms, 64)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, bool], Model]:
    """kimi-tiny for 1, 2 and 4 ranks (its drafter's two key heads are on all of four ranks), and a random model of its form
    with experts wide enough for eight."""
    folder = tmp_path_factory.mktemp("models")
    drafter: Any = yaml_text.read(YAML.parent / "dflash_tiny.yaml").data
    drafter["parallel"]["split"] = ["width"]
    drafter["checkpoint"]["weights"] = str(YAML.parent / "kimi_tiny_dflash")
    (folder / "drafter4.yaml").write_text(json.dumps(drafter))
    wide = wide_model(folder / "wide")

    def made(ranks: int, draft: bool) -> Model:
        settings = (f"decode.drafter={folder / 'drafter4.yaml'}",) if ranks == 4 else ()
        return load(wide if ranks == 8 else YAML, settings, ranks=ranks, draft=draft)

    return made


def texts(model: Model, tokens: int) -> list[list[int]]:
    """Greedy and sampled continuations of a few prompts."""
    with opened(model.ranks) as devices:
        d = group_decoder(model, folders(model, None, None), devices)
        return [run(d, [p], tokens, how)[0][0] for how in (Sampling(), SAMPLED) for p in PROMPTS]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_tree_changes_nothing(ranks: int, models: Callable[[int, bool], Model], device: Device) -> None:
    assert texts(models(ranks, True), 48) == texts(models(ranks, False), 48)


def choices(model: Model, texts: Sequence[tuple[list[int], list[int]]]) -> np.ndarray:
    """The model's greedy choice at every position of given texts behind their prompts."""
    with opened(model.ranks) as devices:
        d, made = group_decoder(model, folders(model, None, None), devices), []
        for prompt, ids in texts:
            for n in range(len(ids)):
                slot, token = d.start(prompt + ids[:n], Sampling(), 1)
                d.end(slot)
                made.append(token)
        return np.array(made)


def test_teacher_forced_argmax(models: Callable[[int, bool], Model], device: Device) -> None:
    """Ranks round their shares of a sum, so that near ties may fall otherwise than on one rank."""
    given = [(g["prompt_ids"], g["greedy_ids"][:48]) for g in GOLDENS]
    alone = choices(models(1, False), given)
    for ranks in (2, 4):
        same = np.mean(choices(models(ranks, False), given) == alone)
        assert same >= 0.99, f"{ranks} ranks: {same:.2%}"


def test_teacher_forced_argmax_of_random_weights(models: Callable[[int, bool], Model], device: Device) -> None:
    """Rounding to BF16 moves random weights' close choices of experts: by the definition in NumPy one rank agrees with itself
    in fp32 at 94% of the positions, eight ranks in fp32 with one at all (tests/runtime/test_wide_ranks.py)."""
    given = [(g["prompt_ids"], g["greedy_ids"][:48]) for g in GOLDENS[:8]]
    eight = models(8, False)
    alone = choices(load(Path(eight.target.doc.file), draft=False, ranks=1), given)
    assert np.mean(choices(eight, given) == alone) >= 0.9
