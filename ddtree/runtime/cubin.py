"""What a cubin contains: kernels and resources, read from ptxas's report and from the ELF file itself."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ddtree.errors import CompileError

# A bulk copy to shared::cluster compiles for SM120 to a call of this family of driver functions, which reserve
# gigabytes of context memory when the cubin is loaded. `shared::cta` copies don't.
FORBIDDEN = re.compile(rb"__cuda_syscall\w*")

_EM_CUDA = 190
_ENTRY_FLAG = 0x10  # st_other of a __global__ function
_SVAL, _REGCOUNT = 0x04, 0x2F  # a record format and an attribute of .nv.info

_PTXAS = re.compile(
    r"Compiling entry function '(?P<entry>[^']+)'"
    r"|(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r"|Used (?P<registers>\d+) registers"
    r"|(?P<smem>\d+) bytes smem"
)


@dataclass(frozen=True)
class Usage:
    """Resources of a cubin's kernels, from `ptxas -v`.

    kernels       names of its `__global__` functions
    registers     per thread, the largest of them
    stack_bytes   local memory per thread, the largest frame: spills and indexed local arrays
    spill_bytes   spill stores + spill loads, summed over all functions, called ones included
    smem_bytes    static shared memory per block, the largest; neither dynamic nor the 1 KiB that CUDA reserves
    """

    kernels: tuple[str, ...]
    registers: int
    stack_bytes: int
    spill_bytes: int
    smem_bytes: int


@dataclass(frozen=True)
class Inspection:
    """What the ELF file says: kernel name -> registers per thread, and the forbidden symbols found."""

    registers: dict[str, int]
    forbidden: tuple[str, ...]


def ptxas_usage(log: str) -> Usage:
    """Reads the report that `--ptxas-options=-v` leaves in NVRTC's log (12.9 to 13.5 write the same form)."""
    kernels: list[str] = []
    found: dict[str, list[int]] = {"registers": [0], "stack": [0], "spill": [0], "smem": [0]}
    for match in _PTXAS.finditer(log):
        if match["entry"]:
            kernels.append(match["entry"])
        elif match["stack"]:
            found["stack"].append(int(match["stack"]))
            found["spill"].append(int(match["stores"]) + int(match["loads"]))
        elif match["registers"]:
            found["registers"].append(int(match["registers"]))
        else:
            found["smem"].append(int(match["smem"]))
    return Usage(
        kernels=tuple(sorted(kernels)),
        registers=max(found["registers"]),
        stack_bytes=max(found["stack"]),
        spill_bytes=sum(found["spill"]),
        smem_bytes=max(found["smem"]),
    )


def inspect(cubin: bytes) -> Inspection:
    """Kernels, registers and forbidden symbols of a cubin; CompileError when it is not an ELF file for CUDA."""
    try:
        return Inspection(_kernel_registers(cubin), tuple(sorted({s.decode() for s in FORBIDDEN.findall(cubin)})))
    except (struct.error, ValueError, IndexError, KeyError) as error:
        raise CompileError(f"not a cubin ({len(cubin)} bytes starting with {cubin[:4]!r}): {error}") from error


def disassemble(cubin: bytes) -> str | None:
    """SASS text of a cubin, or None when `nvdisasm` (pip install nvidia-cuda-nvdisasm) is not installed."""
    tool = _nvdisasm()
    if tool is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        result = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise CompileError(f"nvdisasm refused the cubin: {result.stderr.strip()}")
    return result.stdout


def _kernel_registers(cubin: bytes) -> dict[str, int]:
    sections = dict(_sections(cubin))
    symbols = list(_symbols(sections[".symtab"], sections[".strtab"]))
    registers = dict(_register_counts(sections[".nv.info"]))
    return {name: registers[index] for index, (name, other) in enumerate(symbols) if other & _ENTRY_FLAG}


def _sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and contents of each section of a little-endian ELF64 file (SHT_NOBITS, type 8, has no contents)."""
    if elf[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", elf, 18)[0] != _EM_CUDA:
        raise ValueError("no CUDA ELF header")
    segments, start = struct.unpack_from("<QQ", elf, 32)
    segment_size, segment_count, size, count, names_index = struct.unpack_from("<HHHHH", elf, 54)
    if segments + segment_size * segment_count > len(elf):
        raise ValueError("truncated program headers")
    rows = [struct.unpack_from("<IIQQQQ", elf, start + i * size) for i in range(count)]
    names = rows[names_index][4]
    for name, kind, _, _, offset, length in rows:
        if kind != 8 and offset + length > len(elf):
            raise ValueError("truncated section")
        yield _string(elf, names + name), b"" if kind == 8 else elf[offset : offset + length]


def _symbols(table: bytes, strings: bytes) -> Iterator[tuple[str, int]]:
    """(name, st_other) of each symbol, in the order that .nv.info counts them."""
    for name, _, other, _, _, _ in struct.iter_unpack("<IBBHQQ", table):
        yield _string(strings, name), other


def _register_counts(info: bytes) -> Iterator[tuple[int, int]]:
    """(symbol index, registers) from .nv.info: records of a format byte, an attribute byte and 16 bits.

    The 16 bits are the value itself or, in the SVAL format, the length of the value that follows.
    """
    offset = 0
    while offset < len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, offset)
        offset += 4
        if form != _SVAL:
            continue
        if attribute == _REGCOUNT:
            yield struct.unpack_from("<II", info, offset)
        offset += value


def _string(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()


def _nvdisasm() -> str | None:
    try:
        import nvidia
    except ImportError:
        return shutil.which("nvdisasm")
    wheels = (Path(root) / sub / "nvdisasm" for root in nvidia.__path__ for sub in ("cu13/bin", "cuda_nvdisasm/bin"))
    return next((str(path) for path in wheels if path.is_file()), shutil.which("nvdisasm"))
