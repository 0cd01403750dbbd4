"""Kernel arguments: checked against the parameter list that the compiler saw, and laid out as cuLaunchKernel wants them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.emulator.memory import guarded, is_guarded


class _Parameter(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_char), ("size", ctypes.c_uint)]


class _Kernel(ctypes.Structure):
    _fields_ = [
        ("call", ctypes.c_void_p),
        ("count", ctypes.c_int),
        ("max_threads", ctypes.c_int),
        ("parameters", ctypes.POINTER(_Parameter)),
    ]


@dataclass
class Packed:
    """The argument table and what must stay alive while the kernel runs."""

    table: Any
    buffers: Any
    buffer_count: int
    copies: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)

    def copy_back(self) -> None:
        """Bring results from guarded copies to the caller's arrays; a read-only array is an input and must be unchanged."""
        for original, copy in self.copies:
            if original.flags.writeable:
                original[...] = copy
            elif original.tobytes() != copy.tobytes():
                raise ValueError("the kernel wrote to a read-only array")


def max_threads(description: int) -> int:
    """The launch bounds of the kernel described at address `description`."""
    return int(_Kernel.from_address(description).max_threads)


KIND_NAMES = {b"p": "pointer", b"f": "floating-point", b"i": "signed integer", b"u": "unsigned integer", b"s": "struct"}


def pack(name: str, description: int, args: Sequence[Any]) -> Packed:
    """Lay out `args` for the kernel described at address `description`; ValueError when they do not fit its parameters."""
    described = _Kernel.from_address(description)
    if len(args) != described.count:
        raise ValueError(f"{name} takes {described.count} arguments, got {len(args)}")
    copies: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
    values: list[bytes] = []
    buffers: list[int] = []
    keep: list[Any] = []
    for i, value in enumerate(args):
        parameter = described.parameters[i]
        where = f"{name}, argument {i} ({KIND_NAMES[parameter.kind]}, {parameter.size} bytes)"
        if isinstance(value, np.ndarray):
            value = _array(where, value, copies, keep)
            buffers += [value.ctypes.data, value.nbytes, i]
        values.append(_encode(where, parameter.kind, parameter.size, value))
    cells = [ctypes.create_string_buffer(raw, max(1, len(raw))) for raw in values]
    table = (ctypes.c_void_p * max(1, len(cells)))(*map(ctypes.addressof, cells))
    words = (ctypes.c_uint64 * max(1, len(buffers)))(*buffers)
    return Packed(table, words, len(buffers) // 3, copies, [*keep, cells])


def _array(
    where: str,
    array: np.ndarray[Any, Any],
    copies: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]],
    keep: list[Any],
) -> np.ndarray[Any, Any]:
    if not array.flags.c_contiguous:
        raise ValueError(f"{where}: the array of shape {array.shape} is not contiguous")
    if is_guarded(array):
        keep.append(array)
        return array
    for original, copy in copies:
        if original.ctypes.data == array.ctypes.data and original.nbytes == array.nbytes:
            return copy
    copy = guarded(array)
    copies.append((array, copy))
    return copy


def _encode(where: str, kind: bytes, size: int, value: Any) -> bytes:
    """The bytes of one parameter."""
    if value is None or isinstance(value, np.ndarray):
        if kind != b"p":
            raise ValueError(f"{where}: got {'None' if value is None else 'an array'}")
        return (0 if value is None else value.ctypes.data).to_bytes(8, "little")
    if isinstance(value, bytes | bytearray | ctypes.Structure | np.void):
        return _sized(where, size, value.tobytes() if isinstance(value, np.void) else bytes(memoryview(value)))
    if isinstance(value, np.generic):
        wanted = {"f": b"f", "i": b"iu", "u": b"iu", "b": b"u"}.get(value.dtype.kind, b"")
        if kind not in wanted and value.dtype.kind != "V":
            raise ValueError(f"{where}: got {value.dtype} {value!r}")
        return _sized(where, size, value.tobytes())
    if isinstance(value, float):
        if kind != b"f":
            raise ValueError(f"{where}: got the float {value}")
        return np.array(value, f"f{size}").tobytes()
    if isinstance(value, int):
        if kind not in b"iup":
            raise ValueError(f"{where}: got the integer {value}")
        try:
            return value.to_bytes(size, "little", signed=kind == b"i")
        except OverflowError:
            raise ValueError(f"{where}: {value} does not fit") from None
    raise ValueError(f"{where}: cannot pass a {type(value).__name__}")


def _sized(where: str, size: int, raw: bytes) -> bytes:
    if len(raw) != size:
        raise ValueError(f"{where}: got {len(raw)} bytes")
    return raw
