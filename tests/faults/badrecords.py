"""A layout that does harm where a record's text says so: the plug-in through which tests inject faults."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

from retok_dask.types import Conversation

_hoard: list[bytearray] = []


def layout(record: dict[str, Any]) -> Conversation:
    """Pass a record on, after doing what its ``fault`` says."""
    match record.get("fault"):
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(9)
        case "memory":
            while True:
                _hoard.append(bytearray(os.urandom(1 << 20) * 16))
                time.sleep(0.005)
        case "stuck":
            ctypes.PyDLL(None).sleep(900)  # holds the interpreter lock
        case "slow":
            time.sleep(900)
        case "pause":
            time.sleep(0.3)
    return Conversation(messages=record["messages"], id=record.get("id"))
