"""Faults in joining the ranks' columns."""

MUTATIONS = [
    (
        "all_gather.cuh",
        "(i / words * ranks + r) * words + i % words",
        "(i / words * ranks + r) * words + i % (words - 1)",
    ),
    ("all_gather.cuh", "mail.inbox + r * total + i", "mail.inbox + (r + 1) % ranks * total + i"),
    (
        "all_gather.cuh",
        "post(outbox[k] + me * total + i, word)",
        "post(outbox[k] + me * total + i / words * words, word)",
    ),
    ("all_gather.cuh", "r == me ? own : parts[r]", "parts[r]"),
    ("ranks.cuh", "e == kEmpty ? 0x7fffffffu : e", "e"),
]
