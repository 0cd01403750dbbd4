"""HeaderReader: which headers a source reaches, and which include lines are refused."""

from pathlib import Path

import pytest

from ddtree.errors import CompileError
from ddtree.runtime.headers import HeaderReader


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "ddtree/num").mkdir(parents=True)
    (tmp_path / "ddtree/a.cuh").write_text('#pragma once\n  #  include "ddtree/num/b.cuh" // why\n')
    (tmp_path / "ddtree/num/b.cuh").write_text('#include "ddtree/a.cuh" /* a cycle */\n#include <cuda_fp16.h>\n')
    return tmp_path


def test_headers_are_followed_through_headers_and_cycles(root: Path) -> None:
    found = HeaderReader(root).reachable('int before;\n#include <cuda_bf16.h>\n#include "ddtree/a.cuh"\n', "k")
    assert list(found.own) == ["ddtree/a.cuh", "ddtree/num/b.cuh"]
    assert found.own["ddtree/a.cuh"] == (root / "ddtree/a.cuh").read_text()
    assert found.cuda == {"cuda_bf16.h", "cuda_fp16.h"}


def test_both_branches_of_an_if_count(root: Path) -> None:
    found = HeaderReader(root).reachable('#if 0\n#include "ddtree/num/b.cuh"\n#endif\n', "k")
    assert "ddtree/num/b.cuh" in found.own


@pytest.mark.parametrize(
    "target",
    [
        '"a.cuh"',
        '"../ddtree/a.cuh"',
        '"ddtree/../secret.h"',
        '"ddtree//a.cuh"',
        '"/etc/passwd"',
        "<ddtree/a.cuh>",
        "NAME",
    ],
)
def test_an_include_that_can_not_be_hashed_is_refused(root: Path, target: str) -> None:
    with pytest.raises(CompileError, match=r"kernel_7: cannot follow #include .*ddtree/NAME\.cuh"):
        HeaderReader(root).reachable(f"#include {target}\n", "kernel_7")


def test_a_missing_header_names_the_file_that_asks_for_it(root: Path) -> None:
    (root / "ddtree/a.cuh").write_text('#include "ddtree/gone.cuh"\n')
    with pytest.raises(CompileError, match=r'ddtree/a\.cuh: #include "ddtree/gone\.cuh": No such file'):
        HeaderReader(root).reachable('#include "ddtree/a.cuh"\n', "k")
