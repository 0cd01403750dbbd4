"""A draft tree as text, for the terminal."""

from __future__ import annotations

import json
import math

from ddtree.graph.budget import Choice
from ddtree.runtime.decoder import Round
from ddtree.runtime.text import Tokenizer

_ACCEPTED, _OTHER = "●", "○"


def draw_round(number: int, done: Round, tokenizer: Tokenizer) -> str:
    """One round: every node with its token and its probability under the drafter, the accepted path marked.

    Children stand below their parent, best first; the bonus token that the target added closes the accepted path.
    """
    tree, accepted = done.tree, set(done.path)
    children: dict[int, list[int]] = {}
    for node in range(1, len(tree)):
        children.setdefault(int(tree.parent[node]), []).append(node)
    lines = [f"round {number}: {len(tree)} rows, {len(done.emitted)} tokens{' (FORCED)' if done.forced else ''}"]
    if done.choice:
        lines.append(_reason(done.choice))

    def name(token: int) -> str:
        return json.dumps(tokenizer.decode([token]), ensure_ascii=False)

    stack = [(0, "", True)]
    while stack:
        node, indent, last = stack.pop()
        mark = _ACCEPTED if node in accepted else _OTHER
        branch = "" if node == 0 else indent + ("└─" if last else "├─")
        share = "" if node == 0 else f"  {math.exp(tree.score[node]):.3f}"
        bonus = f"  + {name(done.emitted[-1])}" if node == done.path[-1] else ""
        lines.append(f"{branch}{mark} {name(int(tree.token[node]))}{share}{bonus}")
        below = children.get(node, [])
        inner = "" if node == 0 else indent + ("  " if last else "│ ")
        stack.extend((child, inner, child == below[-1]) for child in reversed(below))
    return "\n".join(lines)


def _reason(choice: Choice) -> str:
    """Why a round had its size, as one line."""
    price = f"{choice.expected:.2f} tokens expected for {choice.ms:.2f} ms"
    if not choice.draft:
        return f"no draft: it lost {choice.lost:.1f} rounds; {price}"
    without = f"{choice.plain:.2f} ms without a draft"
    shown = ["  ".join(f"{ratio:.2f}" for ratio in ratios) for ratios in choice.calibration.values()]
    return (
        f"{'probe' if choice.probe else 'auto'}: {price}, {without}; probabilities by depth times {' | '.join(shown)}"
    )


def trace_line(number: int, done: Round, anchor_position: int) -> str:
    """One round as a line of JSON: the tree in node order, the path, the new tokens, the seconds of each phase, and under
    budget auto the choice of the size; `forced` where the accepted length is not the model's."""
    tree = done.tree
    why: dict[str, object] = {"choice": done.choice.as_json()} if done.choice else {}
    if done.forced:
        why["forced"] = True
    return json.dumps(
        {
            "round": number,
            "position": anchor_position,
            "tokens": tree.token.tolist(),
            "parents": tree.parent.tolist(),
            "depths": tree.depth.tolist(),
            "scores": [round(float(s), 6) for s in tree.score],
            "path": done.path,
            "emitted": done.emitted,
            "seconds": done.seconds,
            **why,
        }
    )
