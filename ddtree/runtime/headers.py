"""The headers that a generated source reaches, found by following its `#include` lines.

NVRTC gets these texts in memory instead of a search path, so that it compiles exactly the bytes that the compile
cache hashed: a header edited between the two, or picked up from elsewhere, can't slip in.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from ddtree.errors import CompileError

INCLUDE_ROOT = Path(__file__).parents[1] / "templates" / "include"

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b[ \t]*(.*?)[ \t]*(?://.*|/\*.*)?$", re.MULTILINE)
_OWN = re.compile(r'"(ddtree/(?:\w[\w.-]*/)*\w[\w.-]*)"')
_CUDA = re.compile(r"<(?!ddtree/)([\w./-]+)>")


@dataclass(frozen=True)
class Headers:
    """What a source includes, directly or through other headers.

    own    name as written in the include line ("ddtree/prims.cuh") -> text, in order of first use
    cuda   names of the CUDA headers ("cuda_bf16.h"); their contents follow from the NVRTC version
    """

    own: dict[str, str]
    cuda: frozenset[str]


@functools.lru_cache(maxsize=512)
def _includes(text: str) -> list[str]:
    """What follows each #include of a text; kernels share their headers, so each is searched once."""
    return _INCLUDE.findall(text)


class HeaderReader:
    """Finds reachable headers below one include folder and reads each file once."""

    def __init__(self, root: Path = INCLUDE_ROOT) -> None:
        self._root = root
        self._texts: dict[str, str] = {}

    def reachable(self, source: str, name: str) -> Headers:
        """Headers reached from `source`; `name` says in an error message where a bad include stands.

        Both branches of an `#if` count: the set may be larger than what the compiler sees, never smaller.

        Raises:
            CompileError: an include that is neither `"ddtree/..."` nor `<cuda header>`, or a missing header.
        """
        own: dict[str, str] = {}
        cuda: set[str] = set()
        waiting = [(source, name)]
        while waiting:
            text, place = waiting.pop()
            for target in _includes(text):
                if header := _OWN.fullmatch(target):
                    if header[1] not in own:
                        own[header[1]] = self._read(header[1], place)
                        waiting.append((own[header[1]], header[1]))
                elif header := _CUDA.fullmatch(target):
                    cuda.add(header[1])
                else:
                    raise CompileError(
                        f'{place}: cannot follow #include {target}; write "ddtree/NAME.cuh" for a header of the '
                        "package or <NAME.h> for one of CUDA, so that the compile cache sees every header"
                    )
        return Headers(own, frozenset(cuda))

    def _read(self, header: str, place: str) -> str:
        if header not in self._texts:
            try:
                self._texts[header] = (self._root / header).read_text(encoding="utf-8")
            except OSError as error:
                raise CompileError(f'{place}: #include "{header}": {error.strerror} ({self._root / header})') from error
        return self._texts[header]
