"""Arrays for kernels: an overrun hits an inaccessible page, a value never written is a NaN."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from typing import Any

import ml_dtypes
import numpy as np

PAGE = mmap.PAGESIZE
ALIGNMENT = 16
_PROT_NONE = 0

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_guarded: weakref.WeakValueDictionary[int, np.ndarray[Any, Any]] = weakref.WeakValueDictionary()


def guarded(array: np.ndarray[Any, Any], low: bool = False) -> np.ndarray[Any, Any]:
    """A writable copy of `array` whose end (rounded up to 16 bytes) touches an inaccessible page.

    A page below is inaccessible as well; `low=True` puts the start of the array against it instead of the end. The pages are
    unmapped when the last view of the copy is gone.
    """
    array = np.ascontiguousarray(array)
    size = max(1, array.nbytes)
    body = -(-size // PAGE) * PAGE
    mapping = mmap.mmap(-1, body + 2 * PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    for page in (base, base + PAGE + body):
        if _libc.mprotect(page, PAGE, _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect failed")
    offset = PAGE if low else PAGE + body - -(-size // ALIGNMENT) * ALIGNMENT
    copy = (
        np.frombuffer(mapping, dtype=np.uint8, count=array.nbytes, offset=offset).view(array.dtype).reshape(array.shape)
    )
    copy[...] = array
    _guarded[copy.ctypes.data] = copy
    return copy


def is_guarded(array: np.ndarray[Any, Any]) -> bool:
    """Whether `array` is, from its first byte to its last, a live result of `guarded`."""
    whole = _guarded.get(array.ctypes.data)
    return whole is not None and whole.nbytes == array.nbytes


def poison_like(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Guarded memory of the same shape and dtype, every byte 0xff: NaN in floating point, -1 in integers.

    Outputs start like this, so that an element that a kernel forgets to write is seen.
    """
    return guarded(np.full(array.nbytes, 0xFF, np.uint8).view(array.dtype).reshape(array.shape))


def bf16(values: Any) -> np.ndarray[Any, Any]:
    """`values` as a bfloat16 array, rounded to nearest even."""
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16)
