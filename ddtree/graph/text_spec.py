"""The YAML section `text:`: how a model's text becomes token ids and back, and how a chat becomes a prompt."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from ddtree.graph.strict import MisplacedError, Strict


def _file_inside(name: str) -> str:
    """A file name that cannot leave the folder it is relative to."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name:
        raise ValueError(f"must name a file inside its folder, without '..' and not absolute; found {name!r}")
    return name


def _with_slot(text: str, slot: str) -> str:
    if text.count(slot) != 1:
        raise ValueError(f"must contain {slot} exactly once; found {text!r}")
    return text


FileInside = Annotated[str, AfterValidator(_file_inside)]


class _Section(Strict):
    """A part of `text:`; the texts below its fields are the descriptions in the JSON schema."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class ChunkLimits(_Section):
    """Cuts made before the pre-tokeniser, so that pathological input costs linear time."""

    characters: int = Field(ge=1)
    """Text is cut into chunks of this many characters."""
    run: int = Field(ge=1)
    """Inside a chunk, a run of space or of non-space characters is cut after this many."""


class TokenizerSpec(_Section):
    """A byte-level BPE vocabulary in a tiktoken rank file, followed by slots for special tokens."""

    kind: Literal["tiktoken"]
    """Format of the rank file: lines `base64(token bytes) SPACE rank`."""
    ranks: FileInside
    """The rank file, relative to the weights folder."""
    base_tokens: int = Field(ge=256)
    """Tokens of the rank file; their ids are their ranks, 0..base_tokens-1."""
    special_slots: int = Field(ge=0)
    """Ids after the base tokens that are reserved for special tokens, named or not."""
    special: dict[str, int]
    """Special tokens by name."""
    unnamed: Annotated[str, AfterValidator(lambda text: _with_slot(text, "{id}"))]
    """Name of a special slot that `special` leaves out; contains `{id}`."""
    pattern: list[str] = Field(min_length=1)
    """The pre-tokeniser: regular expressions, tried in this order."""
    limits: ChunkLimits

    @property
    def vocab(self) -> int:
        """Number of ids, special slots included."""
        return self.base_tokens + self.special_slots

    @property
    def regex(self) -> str:
        """The pre-tokeniser as one regular expression."""
        return "|".join(self.pattern)

    def slots(self) -> dict[str, int]:
        """All special tokens, unnamed slots included: name -> id, in the order of the ids."""
        named = {id_: name for name, id_ in self.special.items()}
        ids = range(self.base_tokens, self.vocab)
        return {named.get(id_, self.unnamed.replace("{id}", str(id_))): id_ for id_ in ids}

    @model_validator(mode="after")
    def _special_ids_fill_slots_once(self) -> Self:
        owner: dict[int, str] = {}
        for name, id_ in self.special.items():
            if not name:
                raise MisplacedError("special: a token needs a name", "special")
            if not self.base_tokens <= id_ < self.vocab:
                reason = f"special: {name} has id {id_}, outside {self.base_tokens}..{self.vocab - 1}"
                raise MisplacedError(reason, "special", name)
            if id_ in owner:
                raise MisplacedError(f"special: {name} and {owner[id_]} share id {id_}", "special", name)
            owner[id_] = name
        if len(self.slots()) != self.special_slots:
            raise MisplacedError(f"special: a token has the name of an unnamed slot ({self.unnamed})", "special")
        return self


class BosSpec(_Section):
    """The token that starts a text."""

    token: str
    """Its name in `tokenizer.special`."""
    completion: bool
    """Whether a raw completion's prompt starts with it. A chat's prompt is what the chat template says."""


class ReasoningSpec(_Section):
    """How generated text marks the reasoning before the answer. All are names of special tokens."""

    open: str
    close: str
    implicit_close: list[str] = Field(default_factory=list)
    """Tokens that end the reasoning too when the model forgets `close`."""


TOOL_MARKERS = ("section_begin", "section_end", "call_begin", "argument_begin", "call_end")


class ToolSpec(_Section):
    """How tools are declared and called. The five markers are names of special tokens."""

    declaration: Literal["typescript", "json"]
    """`typescript`: the template receives type declarations as text; `json`: it receives the tools alone."""
    variable: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Template variable of the declaration text; none when a schema cannot be written in the format."""
    sort_keys: bool
    """Whether the tools' JSON objects are sorted by key, recursively, before they are declared."""
    call_id: str
    """Id of a call that the request leaves without one: `{name}` of the function, `{index}` counted from 0 per chat."""
    section_begin: str
    section_end: str
    call_begin: str
    argument_begin: str
    call_end: str

    @model_validator(mode="after")
    def _call_id_has_its_slots(self) -> Self:
        for slot in ("{name}", "{index}"):
            _with_slot(self.call_id, slot)
        return self


class RenderLimits(_Section):
    """Bounds of one rendering of the chat template."""

    characters: int = Field(ge=1)
    """Most characters of a prompt."""
    seconds: float = Field(gt=0)
    """Most seconds of a rendering."""


class ChatSpec(_Section):
    """The chat template (Jinja) and what surrounds it.

    The template sees `messages`, `tools` (a list or none), the declaration text, `add_generation_prompt`, `bos_token`
    and the flags.
    """

    template: str | None = None
    """The template itself; exactly one of this and `template_file`."""
    template_file: FileInside | None = None
    """The template's file, relative to the YAML."""
    flags: dict[str, bool | int | str] = Field(default_factory=dict)
    """Further template variables, with their defaults; a request may set these and no others."""
    roles: list[str] = Field(min_length=1)
    """Roles that a message may have."""
    content_parts: list[str] = Field(min_length=1)
    """Types of the parts of a message whose content is a list."""
    reasoning: ReasoningSpec | None = None
    tools: ToolSpec | None = None
    limits: RenderLimits

    @property
    def markers(self) -> dict[tuple[str | int, ...], str]:
        """Every special token that the parser of generated text looks for, by its key path in this section."""
        found: dict[tuple[str | int, ...], str] = {}
        if self.reasoning:
            found = {("reasoning", "open"): self.reasoning.open, ("reasoning", "close"): self.reasoning.close}
            found |= {("reasoning", "implicit_close", i): name for i, name in enumerate(self.reasoning.implicit_close)}
        if self.tools:
            found |= {("tools", key): getattr(self.tools, key) for key in TOOL_MARKERS}
        return found

    @model_validator(mode="after")
    def _one_template_and_free_names(self) -> Self:
        if (self.template is None) == (self.template_file is None):
            raise ValueError("needs exactly one of template and template_file")
        taken = {"messages", "tools", "add_generation_prompt", "bos_token", self.tools.variable if self.tools else ""}
        if clash := sorted(taken & self.flags.keys()):
            reason = f"flags: {', '.join(clash)} is set by the engine; choose another name"
            raise MisplacedError(reason, "flags", clash[0])
        return self


class TextSpec(_Section):
    """Tokenizer, start token and chat format of a model."""

    tokenizer: TokenizerSpec
    bos: BosSpec | None = None
    chat: ChatSpec | None = None

    @model_validator(mode="after")
    def _markers_are_special_tokens(self) -> Self:
        used: dict[tuple[str | int, ...], str] = {("bos", "token"): self.bos.token} if self.bos else {}
        used |= {("chat", *path): name for path, name in (self.chat.markers if self.chat else {}).items()}
        for path, name in used.items():
            if name not in self.tokenizer.special:
                raise MisplacedError(f"{name} is not one of tokenizer.special", *path)
        return self
