"""Every compiler that may be found does the whole job: results, messages, race detection and source lines."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from tests.emulator import SCHEDULES, CompilerError, KernelError, Module, unsupported_reason
from tests.emulator import compiler as compilers
from tests.emulator.cases import CASES, NAMES, SOURCE
from tests.emulator.compiler import Mode, find_compiler
from tests.emulator.test_bug_zoo import CHECK, FAST, run

if reason := unsupported_reason():
    pytest.skip(reason, allow_module_level=True)


def others() -> list[str]:
    """The installed compilers that the rest of the tests do not use."""
    found = []
    for name in ("gcc", "clang", "zig"):
        try:
            found.append(find_compiler(name).name)
        except CompilerError:
            continue
    return [name for name in found if name != find_compiler().name]


@cache
def primitives(compiler: str, mode: Mode) -> Module:
    return Module(SOURCE, NAMES, mode=mode, compiler=compiler)


@pytest.mark.parametrize("mode", ["fast", "check"])
@pytest.mark.parametrize("compiler", others())
def test_primitives_equal_numpy(compiler: str, mode: Mode) -> None:
    for case in CASES.values():
        args = case.fresh_args()
        primitives(compiler, mode).launch(
            case.kernel, case.grid, case.block, args, case.smem, SCHEDULES[4], cooperative=case.cooperative
        )
        for position, want in zip(case.outputs, case.want, strict=True):
            np.testing.assert_array_equal(args[position].reshape(want.shape), want, err_msg=case.name)


@pytest.mark.parametrize("mode", ["fast", "check"])
@pytest.mark.parametrize("compiler", others())
def test_planted_bugs_are_named(compiler: str, mode: Mode) -> None:
    for name, message in (FAST if mode == "fast" else CHECK).items():
        with pytest.raises(KernelError) as caught:
            run(name, mode, compiler)
        assert re.search(message, str(caught.value)), f"{name}: {caught.value}"


def test_the_first_installed_compiler_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    zig = compilers.Compiler("zig", ("zig", "c++"), ("zig", "cc"), "1")
    monkeypatch.delenv("DDTREE_EMULATOR_CXX", raising=False)
    monkeypatch.setattr(compilers, "_native", lambda name, program: None)
    monkeypatch.setattr(compilers, "_zig", lambda: zig)
    find = find_compiler.__wrapped__
    assert find() is zig
    monkeypatch.setattr(compilers, "_zig", lambda: None)
    with pytest.raises(CompilerError, match=r"no C\+\+ compiler .*pip install ziglang"):
        find()
    with pytest.raises(CompilerError, match="unknown compiler 'icc': expected gcc, clang or zig"):
        find("icc")
    monkeypatch.setenv("DDTREE_EMULATOR_CXX", "clang")
    with pytest.raises(CompilerError, match=r"no C\+\+ compiler \(clang\)"):
        find()


def test_zig_spells_its_own_architecture() -> None:
    zig = compilers.Compiler("zig", (), (), "")
    assert zig.flags("fast")[0] == "-march=x86_64_v3"
    assert compilers.Compiler("gcc", (), (), "").flags("fast")[0] == "-march=x86-64-v3"
