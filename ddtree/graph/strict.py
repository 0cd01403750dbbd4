"""The base of every YAML model: unknown keys are mistakes, and types are never guessed."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A frozen pydantic model that refuses unknown keys and does not convert types (an int may stand for a float)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class MisplacedError(ValueError):
    """A mistake that a check of a whole section found at `path` inside it."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path
