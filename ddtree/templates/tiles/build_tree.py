"""Launch of build_tree: one warp per sequence."""

from __future__ import annotations

from ddtree.graph.op import OpError
from ddtree.graph.ops.build_tree import BuildTree
from ddtree.graph.rows import MAX_ROWS
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import WARP, domain, domain_suffix, kernel_name

MOST_DEPTHS, MOST_K = 16, 255  # ranks along a path are packed as 16 bytes
CANDIDATE = 40  # bytes of struct Candidate


def tiles(op: BuildTree, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel, whatever the rows."""
    k = op.log_prob.shape[1]
    for what, found, most in (
        ("nodes", op.nodes, MAX_ROWS),
        ("depths", op.depths, MOST_DEPTHS),
        ("candidates", k, MOST_K),
    ):
        if not 1 <= found <= most:
            raise OpError(f"build_tree takes 1..{most} {what}, found {found}")
    fields = ("anchor", "budget", "log_prob", "token")
    smem = 2 * CANDIDATE * op.nodes + 4 * op.depths * k
    made = ("node_token", "node_parent", "node_depth", "node_score", "count")
    return (
        Tile(
            name=kernel_name("build_tree", op.depths, k, op.nodes, domain_suffix(op.log_prob)),
            template="build_tree",
            constants={"depths": op.depths, "k": k, "nodes": op.nodes, "smem": smem, "domain": domain(op.log_prob)},
            args=(*(Arg("tensor", f) for f in fields), Arg("rows"), *(Arg("tensor", f) for f in made)),
            grid=(op.anchor.shape[0], 1, 1),
            block=WARP,
            smem=smem,
        ),
    )
