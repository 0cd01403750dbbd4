"""Code addresses of a shared library to source lines: a reader of ELF's .debug_line section, DWARF version 4.

Done here because the machine with only the ziglang wheel has no addr2line. Format: DWARF 4 standard, section 6.2.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path, PurePath

# Standard opcodes (7.21)
COPY, ADVANCE_PC, ADVANCE_LINE, SET_FILE, CONST_ADD_PC, FIXED_ADVANCE_PC = 1, 2, 3, 4, 8, 9
END_SEQUENCE, SET_ADDRESS = 1, 2  # extended ones


class _Bytes:
    """A cursor."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def number(self, code: str) -> int:
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return int(value)

    def uleb(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.number("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def sleb(self) -> int:
        start = self.at
        value = self.uleb()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value

    def string(self) -> str:
        end = self.data.index(b"\0", self.at)
        text = self.data[self.at : end].decode(errors="replace")
        self.at = end + 1
        return text


def _section(library: bytes, wanted: str) -> bytes:
    """A section of a 64-bit little-endian ELF file; empty when it has none of that name."""
    (table,) = struct.unpack_from("<Q", library, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", library, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", library, table + i * entry_size) for i in range(count)]
    names = headers[names_index][4]
    for name, _, _, _, offset, size in headers:
        if _Bytes(library, names + name).string() == wanted:
            return library[offset : offset + size]
    return b""


class _Program:
    """One compilation unit's line number program (6.2.4)."""

    def __init__(self, data: bytes, at: int) -> None:
        b = self.bytes = _Bytes(data, at)
        self.end = b.number("I") + b.at
        self.version = b.number("H")
        body = b.number("I") + b.at
        self.min_instruction = b.number("B")
        b.number("B")  # operations per instruction: one, except on VLIW machines
        b.number("B")  # default is_stmt
        self.line_base, self.line_range, self.opcode_base = b.number("b"), b.number("B"), b.number("B")
        self.operands = [b.number("B") for _ in range(self.opcode_base - 1)]
        while b.string():  # include directories
            pass
        self.files = [""]
        while name := b.string():
            self.files.append(PurePath(name).name)
            b.uleb(), b.uleb(), b.uleb()  # directory, time, size
        b.at = body

    def rows(self) -> Iterator[tuple[int, str, int]]:
        """(address, file, line) where each instruction range starts; line 0 ends a sequence (6.2.5)."""
        b = self.bytes
        address, file, line = 0, 1, 1
        while b.at < self.end:
            opcode = b.number("B")
            if opcode >= self.opcode_base:
                steps, lines = divmod(opcode - self.opcode_base, self.line_range)
                address += steps * self.min_instruction
                line += self.line_base + lines
                yield address, self.files[file], line
            elif opcode == 0:
                after = b.uleb() + b.at
                extended = b.number("B")
                if extended == END_SEQUENCE:
                    yield address, "", 0
                    address, file, line = 0, 1, 1
                elif extended == SET_ADDRESS:
                    address = b.number("Q")
                b.at = after
            elif opcode == COPY:
                yield address, self.files[file], line
            elif opcode == ADVANCE_PC:
                address += b.uleb() * self.min_instruction
            elif opcode == ADVANCE_LINE:
                line += b.sleb()
            elif opcode == SET_FILE:
                file = b.uleb()
            elif opcode == CONST_ADD_PC:
                address += (255 - self.opcode_base) // self.line_range * self.min_instruction
            elif opcode == FIXED_ADVANCE_PC:
                address += b.number("H")
            else:
                for _ in range(self.operands[opcode - 1]):
                    b.uleb()


@functools.cache
def _rows(library: Path) -> list[tuple[int, str, int]]:
    """Every row of the library's version 4 line tables; rows of a sequence stay together, in address order."""
    data = _section(library.read_bytes(), ".debug_line")
    rows: list[tuple[int, str, int]] = []
    at = 0
    while at < len(data):
        program = _Program(data, at)
        if program.version == 4:
            rows += program.rows()
        at = program.end
    return rows


def source_line(library: Path, offset: int) -> str | None:
    """`file:line` of the instruction at `offset` from the library's load address, None when the tables do not say."""
    rows = _rows(library)
    for (start, file, line), (stop, _, _) in pairwise(rows):
        if line and start <= offset < stop:
            return f"{file}:{line}"
    return None
