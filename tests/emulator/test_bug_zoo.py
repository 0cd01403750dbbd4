"""Every kind of bug that the emulator promises to find, planted on purpose: it is found, and the message says what it is."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.emulator import SCHEDULES, KernelError, Module, guarded, poison_like, unsupported_reason
from tests.emulator.compiler import Mode

if reason := unsupported_reason():
    pytest.skip(reason, allow_module_level=True)

ZOO = (Path(__file__).parent / "kernels" / "bug_zoo.cu").read_text()
NAMES = re.findall(r"KERNEL\(128\) (\w+)", ZOO)
THREADS, SMEM = 128, 1024


@cache
def zoo(mode: Mode, compiler: str | None = None) -> Module:
    return Module(ZOO, NAMES, mode=mode, compiler=compiler)


def ints(count: int = THREADS, low: bool = False) -> np.ndarray[Any, Any]:
    return guarded(np.zeros(count, np.int32), low=low)


def words() -> np.ndarray[Any, Any]:
    return guarded(np.zeros(THREADS, np.uint32))


FAST: dict[str, str] = {
    "divergent_syncthreads": r"kernel\.cu:\d+: .*divergent __syncthreads: this thread is at kernel\.cu:\d+, others wait at",
    "lane_never_arrives": r"kernel\.cu:\d+: .*shuffle: mask ffffffff names lanes that exited or do not exist \(00000080\)",
    "barrier_against_collective": r"deadlock.*wait in reduce.*threads 3-3 wait at barrier 0 at kernel\.cu:\d+ \(1 of",
    "divergent_collectives": r"divergent warp collective: lane \d+ is in (shuffle|ballot) at kernel\.cu:\d+, lane",
    "exited_lane_in_mask": r"mask ffffffff names lanes that exited or do not exist \(00000020\)",
    "caller_not_in_mask": r"ballot: the calling lane 31 is not in mask 7fffffff",
    "shuffle_from_outside_the_mask": r"shuffle: lane 0 reads lane 20, which is not in mask 0000ffff",
    "named_barrier_starves": r"deadlock.*wait at barrier 1 at kernel\.cu:\d+ \(32 of 64 arrived\)",
    "named_barrier_counts_differ": r"barrier 1: 128 threads here, 64 at kernel\.cu:\d+",
    "half_a_warp_at_a_named_barrier": r"deadlock.*wait in named barrier|exited",
    "past_the_end": r"thread \(124,0,0\): out-of-bounds or misaligned access, 0 bytes past the end of argument 0 \[kernel\.cu:\d+\]",
    "past_shared_memory": r"out-of-bounds or misaligned access, smem\+1024 of 1024 bytes",
    "misaligned_load16": r"load16: address 0x\w+ is not 16-byte aligned",
    "foreign_shared_address": r"address 0x\w+ is not in this block's shared memory",
    "flag_never_set": r"livelock: only spinning threads remain",
    "phase_never_completes": r"livelock",
    "endless_loop": r"timeout: kernel still running in block \(0,0,0\)",
    "misaligned_copy": r"cp_async16: smem\+8 of 1024 bytes is not 16-byte aligned",
    "misaligned_source": r"cp_async16 source: address 0x\w+ is not 16-byte aligned",
    "copy_out_of_bounds": r"cp_async16: 16 bytes at smem\+1024 of 1024 bytes are out of bounds",
    "copy_never_waited_for": r"the thread exits with cp\.async copies that it never waited for",
    "bulk_of_odd_size": r"bulk_load: 24 bytes is not a positive multiple of 16",
    "bulk_never_waited_for": r"exits with a bulk copy in flight",
    "mbarrier_overwritten": r"block \(0,0,0\): the mbarrier at smem\+\d+ was overwritten",
    "mbarrier_not_initialised": r"mbarrier: not initialised",
    "too_many_arrivals": r"mbarrier: more arrivals than its count 1 in one phase",
}

CHECK: dict[str, str] = {
    "missing_syncthreads": r"race \((read after write|write after read)\) on smem\+\d+ of 1024 bytes: .* are not ordered .* \[kernel\.cu:\d+\]",
    "missing_syncwarp": r"race \((read after write|write after read)\) on smem\+\d+",
    "shared_buffer_reused_too_soon": r"race \((read after write|write after read)\) on smem\+\d+",
    "shared_array_race": r"race \(write after write\) on SHARED_ARRAY byte 0",
    "arrive_is_not_wait": r"race \(\w+ after \w+\) on smem\+\d+",
    "mbarrier_used_before_its_init_is_seen": r"kernel\.cu:\d+: race|mbarrier: not initialised",
    "global_read_without_barrier": r"race \((read after write|write after read)\) on argument 0 byte \d+",
    "misaligned_plain_load": r"kernel\.cu:\d+: .*access to 0x\w+, which is not 16-byte aligned",
}


def run(name: str, mode: Mode, compiler: str | None = None, **launch: Any) -> None:
    zoo(mode, compiler).launch(name, 1, THREADS, [ints()], SMEM, timeout=1.0, **launch)


@pytest.mark.parametrize("name", FAST)
def test_fast_mode_names_the_bug(name: str) -> None:
    with pytest.raises(KernelError, match=FAST[name]):
        run(name, "fast")


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("name", CHECK)
def test_check_mode_names_the_bug_under_every_schedule(name: str, schedule: Any) -> None:
    with pytest.raises(KernelError, match=CHECK[name]):
        run(name, "check", schedule=schedule)


@pytest.mark.parametrize(("name", "argument", "message"), [
    ("into_the_red_zone", 249, r"block \(0,0,0\) wrote outside its shared memory, at smem\+996 of 996 bytes"),
    ("into_the_red_zone", -4, r"block \(0,0,0\) wrote outside its shared memory, at smem-16 of 996 bytes"),
    ("division_by_zero", 0, r"thread \(\d+,0,0\): integer division by zero \[kernel\.cu:\d+\]"),
    ("null_pointer", None, r"misaligned access, byte 0 of a null pointer \[kernel\.cu:\d+\]"),
    ("stack_overflow", 1000, r"the thread's stack is exhausted"),
])  # fmt: skip
def test_fast_mode_with_an_argument(name: str, argument: int | None, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        zoo("fast").launch(name, 1, THREADS, [ints(), argument], 996)


@pytest.mark.parametrize(("name", "argument", "message"), [
    ("local_array_overrun", 5, r"kernel\.cu:\d+: .*array index 4 out of bounds|array index out of bounds"),
    ("shared_array_overrun", 9, r"array index 8 out of bounds|shared-memory access out of bounds|array index out of bounds"),
    ("shift_by_the_width", 32, r"shift by 32 is outside the operand's width"),
])  # fmt: skip
def test_check_mode_with_an_argument(name: str, argument: int, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        zoo("check").launch(name, 1, THREADS, [ints(), argument], SMEM)


def test_access_before_the_start() -> None:
    with pytest.raises(KernelError, match="16 bytes before argument 0"):
        zoo("fast").launch("before_the_start", 1, THREADS, [ints(low=True)], SMEM)


def test_unwritten_shared_memory_is_poison() -> None:
    out = ints()
    zoo("fast").launch("unwritten_shared_memory", 1, THREADS, [out], SMEM)
    assert (out == -1).all()


def test_unwritten_output_stays_poisoned() -> None:
    out = poison_like(ints())
    zoo("fast").launch("unwritten_output", 1, THREADS, [out], SMEM)
    assert np.flatnonzero(out == -1).tolist() == [77]


@pytest.mark.parametrize("name", ["copy_read_too_early", "bulk_read_too_early"])
def test_a_copy_read_before_its_wait_is_poison(name: str) -> None:
    source, out = guarded(np.arange(THREADS, dtype=np.int32)), ints()
    zoo("fast").launch(name, 1, THREADS, [source, out], SMEM)
    assert (out == -1).any()
    zoo("fast").launch(name, 1, THREADS, [source, out], SMEM, delayed_copies=False)
    assert (out == source).all(), "immediate copies hide this bug: both modes are needed"


def test_a_missing_barrier_gives_wrong_values_under_some_schedule_even_in_fast_mode() -> None:
    wrong = 0
    for schedule in SCHEDULES:
        out = ints()
        zoo("fast").launch("missing_syncthreads", 1, THREADS, [out], SMEM, schedule)
        wrong += not np.array_equal(out, np.arange(THREADS) ^ 33)
    assert wrong == len(SCHEDULES)


@pytest.mark.parametrize("delayed", [False, True])
def test_copy_into_a_buffer_in_use(delayed: bool) -> None:
    with pytest.raises(KernelError, match=r"race \((write after read|read after write)\) on smem\+\d+"):
        zoo("check").launch(
            "copy_into_a_buffer_in_use", 1, THREADS, [ints(), ints()], SMEM, SCHEDULES[2], delayed_copies=delayed
        )


@pytest.mark.parametrize("cooperative", [False, True])
def test_races_between_blocks(cooperative: bool) -> None:
    with pytest.raises(
        KernelError, match=r"race \(write after write\) on argument 0 byte 0: block \(\d,0,0\).* and block"
    ):
        zoo("check").launch("blocks_write_the_same_word", 2, THREADS, [ints()], SMEM, cooperative=cooperative)
    for name in ("last_block_without_release", "release_before_the_barrier"):
        with pytest.raises(KernelError, match=r"race \(read after write\) on argument 0 byte \d+"):
            zoo("check").launch(name, 4, THREADS, [ints(512), words(), ints()], SMEM, cooperative=cooperative)


def test_waiting_for_another_block_needs_a_cooperative_launch() -> None:
    with pytest.raises(KernelError, match=r"livelock.*must be cooperative"):
        zoo("fast").launch("waits_for_a_later_block", 2, THREADS, [words()])
    zoo("fast").launch("waits_for_a_later_block", 2, THREADS, [words()], cooperative=True)


def test_the_emulator_goes_on_after_every_kind_of_failure() -> None:
    for name in FAST:
        with pytest.raises(KernelError):
            run(name, "fast")
        out = ints()
        zoo("fast").launch("unwritten_output", 1, THREADS, [out], SMEM)
        assert out[5] == 5
