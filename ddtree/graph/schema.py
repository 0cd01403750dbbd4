"""The YAML of a model as strict pydantic models. Field descriptions are the YAML reference.

The operations of blocks are validated by models made from the op classes (op_schema.py), so that an op is described in
one place only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator, model_validator
from pydantic.json_schema import models_json_schema

from ddtree.graph.expression import Expression
from ddtree.graph.op_schema import OP_NODES, OpNode, op_tag
from ddtree.graph.ops import all_ops
from ddtree.graph.strict import Strict
from ddtree.graph.text_spec import TextSpec

NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
LAYERS_PATTERN = r"^[0-9]{1,3}\.\.[0-9]{1,3}$"
ROWS_PATTERN = r"^([1-9]|[1-5][0-9]|6[0-4])$"
MAX_BUDGET = 63
MAX_RANKS = 64
MAX_CONTEXT = 1 << 24  # positions that fp32, in which angles are computed, counts exactly

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
if TYPE_CHECKING:
    OpName = str
else:
    OpName = Literal[tuple(cls.name() for cls in all_ops())]


class RopeSpec(Strict):
    """A rotation rule; see graph/rope.py for the formulas."""

    kind: Literal["plain", "yarn"]
    dim: Expression = Field(description="elements rotated, an expression of dims")
    theta: float = Field(gt=1)
    layout: Literal["interleaved", "half"]
    factor: float = Field(1.0, ge=1)
    original: int = Field(0, ge=0, description="yarn: context length the model was first trained with, in positions")
    beta_fast: float = Field(32.0, gt=0)
    beta_slow: float = Field(1.0, gt=0)
    mscale: float = Field(1.0, ge=0)
    mscale_all_dim: float = Field(0.0, ge=0)
    amplitude: float | Literal["auto"] = Field("auto", description="factor on cos and sin; auto derives it from mscale")
    softmax_gain: bool = Field(False, description="multiply the attention scale by yarn_gain(mscale_all_dim)**2")

    @model_validator(mode="after")
    def _yarn_needs_original(self) -> RopeSpec:
        if self.kind == "yarn" and self.original < 1:
            raise ValueError("kind yarn needs `original`, the context length of the first training")
        return self


class WeightSpec(Strict):
    """A parameter and where it stands in the checkpoint."""

    source: str = Field(
        description="checkpoint tensor name; in a block relative to the layer's prefix; {expert} where stacked"
    )
    shape: list[Expression] = Field(min_length=1, max_length=3, description="undivided shape of one tensor")
    dtype: Literal["bf16", "fp32", "int4"] = "bf16"
    count: Expression = Field(0, description="stacked tensors (experts); 0 for a single one")
    group: int = Field(32, ge=1, description="int4: weights along the input axis that share a scale")
    replicate: bool = Field(
        False, description="keep the whole tensor on every rank though its shape names a divided dim"
    )


class CacheSpec(Strict):
    """Rows kept for each committed position of each layer."""

    row: list[Expression] = Field(min_length=1, max_length=2)
    dtype: Literal["bf16"] = "bf16"
    page: Literal[64] = 64
    window: Expression | None = Field(None, description="positions that stay readable; null keeps all")


class BlockSpec(Strict):
    """A reusable part of a layer."""

    weights: dict[Name, WeightSpec] = {}
    caches: dict[Name, CacheSpec] = {}
    ops: list[OpNode] = Field(min_length=1)


class Layers(Strict):
    """A range of layers built from the same blocks."""

    layers: Annotated[str, Field(pattern=LAYERS_PATTERN, description="first..last, both included")]
    prefix: str = Field("", description="put before the weight sources of the blocks; {layer} is the number")
    blocks: list[Name] = Field(min_length=1)
    values: dict[Name, Expression | bool] = Field({}, description="names bound for these layers, such as a window")

    @property
    def span(self) -> tuple[int, int]:
        """First and last layer."""
        first, last = self.layers.split("..")
        return int(first), int(last)


def op_or_layers_tag(node: Any) -> str | None:
    """Which model an item of a graph is for."""
    return "layers: " if isinstance(node, dict) and "layers" in node else op_tag(node)


GraphItem = Annotated[
    Union[(Annotated[Layers, Tag("layers: ")], *OP_NODES)],  # type: ignore[valid-type]
    Discriminator(op_or_layers_tag),
]


def _rule(rule: str) -> str:
    """A glob, or `re:` and a regular expression that compiles."""
    try:
        re.compile(rule.removeprefix("re:") if rule.startswith("re:") else "")
    except re.error as e:
        raise ValueError(f"not a regular expression: {e}") from None
    return rule


class Checkpoint(Strict):
    """Where the weights are and which of their tensors belong to the model."""

    weights: str = Field(description="folder of the checkpoint, relative to the YAML file")
    prefix: str = ""
    ignore: list[Annotated[str, AfterValidator(_rule)]] = Field(
        [], description="tensor names that are skipped: globs, or regular expressions after `re:`"
    )
    config: dict[str, Expression | bool | list[Expression] | None] = Field(
        {}, description="values that the checkpoint's config.json must have, by dotted key; absent keys pass"
    )


class Parallel(Strict):
    """Tensor parallelism."""

    tensor: int = Field(1, ge=1, le=MAX_RANKS, description="ranks")
    split: list[Name] = Field([], description="dims that the ranks divide")


Milliseconds = Annotated[float, Field(gt=0)]


class RoundCosts(Strict):
    """What rounds cost on one machine, in milliseconds. Only their ratios matter."""

    verify: dict[Annotated[str, Field(pattern=ROWS_PATTERN)], Milliseconds] = Field(
        description="of all steps after the draft, by rows; 1 and 64 must be there, rows in between are interpolated"
    )
    draft: Milliseconds = Field(description="added by a draft: the drafter, its context rows and the tree")

    @field_validator("verify")
    @classmethod
    def _ends(cls, v: dict[str, float]) -> dict[str, float]:
        if not {"1", "64"} <= v.keys():
            raise ValueError(f"the rows 1 and 64 are wanted, found {', '.join(v) or 'none'}")
        return v


class Tree(Strict):
    """Shape of the draft tree. It changes speed, never tokens."""

    budget: Annotated[int, Field(ge=0, le=MAX_BUDGET)] | Literal["auto"] = Field(
        description="nodes of the tree, the root not counted; auto = as many as pay for themselves, round by round"
    )
    width: int | Literal["auto"] = Field(
        "auto", description=f"candidates taken at each depth; auto = the budget, {MAX_BUDGET} where that is auto"
    )
    policy: Literal["best_first"] = "best_first"
    costs: dict[Literal["compute_120f", "sm_90a", "cpu"], RoundCosts] = Field(
        {}, description="for budget auto: costs of rounds by target; measured at load where they are missing"
    )

    @field_validator("width")
    @classmethod
    def _positive(cls, v: int | str) -> int | str:
        if isinstance(v, int) and not 1 <= v <= MAX_BUDGET:
            raise ValueError(f"width must be auto or 1..{MAX_BUDGET}, found {v}")
        return v


class Stop(Strict):
    """When generation ends."""

    ids: list[int] = []
    strings: list[str] = []


class Decode(Strict):
    """The decode loop."""

    drafter: str | None = Field(
        None, description="YAML of the drafter, relative to this file; null decodes without one"
    )
    block_size: int = Field(8, ge=2, description="depth of the tree + 1; at most what the drafter was trained with")
    tree: Tree
    sequences: int = Field(1, ge=1, le=64, description="sequences that share a round")
    prefill_rows: int = Field(256, ge=1, le=8192, description="prompt rows of one prefill step")
    loop: list[Literal["draft", "top_k", "build_tree", "verify", "accept", "commit"]]
    loop_on: Literal["device", "host"] = Field(
        "device", description="who starts a GPU's rounds: the GPU itself, or the host one by one"
    )
    stop: Stop = Stop()

    @field_validator("loop")
    @classmethod
    def _known_order(cls, v: list[str]) -> list[str]:
        full = ["draft", "top_k", "build_tree", "verify", "accept", "commit"]
        if v not in (full, full[3:]):
            raise ValueError(f"the loop must be {full} or {full[3:]}, found {v}")
        return v


class Tuning(Strict):
    """Launch choices per op; none of them changes a sum."""

    threads: int | None = Field(None, ge=32, le=1024)
    stages: int | None = Field(None, ge=1, le=8)
    chunk: int | None = Field(None, ge=16, le=4096)
    blocks_per_sm: int | None = Field(None, ge=1, le=16)


class Passes(Strict):
    """Fusions of ops into one kernel, for the target and its drafter. They change speed, never bits."""

    add_rms_norm: bool = Field(True, description="a residual addition and the norm of its sum")
    all_reduce_add_rms_norm: bool = Field(
        True, description="the sum over the ranks, the addition and the norm behind it (wants add_rms_norm)"
    )
    latent_write: bool = Field(True, description="MLA's latent row (norm and rotation) and its cache write")
    linear_group: bool = Field(True, description="linears that read the same rows, in one launch")
    mla_norms: bool = Field(
        True, description="the cache row and the norm of the query's latent (wants latent_write and linear_group)"
    )


class ModelSpec(Strict):
    """A target model: what it computes, from which weights, and how it decodes."""

    schema_: Literal["ddtree/1"] = Field(alias="schema")
    kind: Literal["target"] = "target"
    name: str
    context: int = Field(ge=64, le=MAX_CONTEXT, description="most positions of one sequence")
    dims: dict[Name, Expression]
    constants: dict[Name, float] = {}
    parallel: Parallel = Parallel()
    checkpoint: Checkpoint
    rope: dict[Name, RopeSpec] = {}
    stream: Name = Field("x", description="the residual stream, whose value after a layer is a tap")
    weights: dict[Name, WeightSpec] = {}
    blocks: dict[Name, BlockSpec]
    graph: list[GraphItem] = Field(min_length=1)
    decode: Decode
    passes: Passes = Passes()
    text: TextSpec
    tuning: dict[Literal["compute_120f", "sm_90a"], dict[OpName, Tuning]] = {}


class Taps(Strict):
    """What the drafter needs of its target."""

    layers: list[int] = Field(min_length=1, description="target layers whose outputs are concatenated, from 0")
    hidden: Expression
    vocab: Expression
    depth: Expression = Field(description="number of target layers")


class DrafterSpec(Strict):
    """A block drafter: context from target features, one forward pass for a whole block."""

    schema_: Literal["ddtree/1"] = Field(alias="schema")
    kind: Literal["drafter"]
    name: str
    dims: dict[Name, Expression]
    constants: dict[Name, float] = {}
    parallel: Parallel = Parallel()
    checkpoint: Checkpoint
    rope: dict[Name, RopeSpec] = {}
    taps: Taps
    block_size: int = Field(ge=2, le=64, description="slots of the trained block, the anchor included")
    mask_id: int = Field(ge=0, description="token id embedded in the slots that are to be drafted")
    weights: dict[Name, WeightSpec] = {}
    blocks: dict[Name, BlockSpec]
    features: list[GraphItem] = Field(min_length=1, description="ops on the features of newly committed rows")
    graph: list[GraphItem] = Field(min_length=1, description="ops on the block")
    tuning: dict[Literal["compute_120f", "sm_90a"], dict[OpName, Tuning]] = {}


def json_schema() -> dict[str, Any]:
    """JSON schema of both kinds of file, for editors; `kind` decides between them."""
    kinds = [(ModelSpec, "validation"), (DrafterSpec, "validation")]
    places, definitions = models_json_schema(kinds, by_alias=True)  # type: ignore[arg-type]
    target, drafter = (places[kind] for kind in kinds)  # type: ignore[index]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ddtree model",
        "if": {"properties": {"kind": {"const": "drafter"}}, "required": ["kind"]},
        "then": drafter,
        "else": target,
        **definitions,
    }
