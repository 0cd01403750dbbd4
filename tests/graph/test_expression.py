"""Arithmetic over dims: what it computes and what it refuses."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree.graph.expression import ExpressionError, evaluate, evaluate_int, names_in

NAMES = {"heads": 8, "nope": 32, "rope": 32, "eps": 1e-5}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (7, 7), (0.5, 0.5), ("heads * (nope + rope)", 512), ("(nope + rope) ** -0.5", 0.125), ("-heads", -8), ("7 // 2", 3),
        ("7 % 4", 3), ("heads / 2", 4.0), (" 3 ", 3), ("eps", 1e-5), ("2**53", 2**53),
    ],
)  # fmt: skip
def test_values(text: str, value: float) -> None:
    assert evaluate(text, NAMES) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hedas", "unknown name 'hedas'; did you mean 'heads'?"),
        ("z", "unknown name 'z'; known names: eps, heads, nope, rope"),
        ("1 +", "'1 +' is not an arithmetic expression"),
        ("", "'' is not an arithmetic expression"),
        ("heads(2)", "only numbers, names, + - * / // % ** and parentheses are allowed"),
        ("__import__('os').system('x')", "only numbers, names, + - * / // % ** and parentheses are allowed"),
        ("True", "only numbers, names, + - * / // % ** and parentheses are allowed"),
        ("1j", "only numbers, names, + - * / // % ** and parentheses are allowed"),
        ("heads // 0", "integer division or modulo by zero"),
        ("2 ** 65", "an exponent above 64 is surely a mistake"),
        ("9 ** 60", "the value is not a real number of at most 2**53"),
        ("(-8) ** 0.5", "the value is not a real number of at most 2**53"),
        ("1e400", "the value is not a real number of at most 2**53"),
        (float("nan"), "the value is not a real number of at most 2**53"),
        (10**20, "the value is not a real number of at most 2**53"),
        ("1" + "+1" * 100, "an expression of 201 characters is too long (limit 200)"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, NAMES)
    assert str(caught.value) == reason


def test_whole_numbers() -> None:
    assert evaluate_int("heads / 2", NAMES) == 4
    with pytest.raises(ExpressionError, match=r"expected a whole number, found 1\.5"):
        evaluate_int("3 / 2", NAMES)


def test_names() -> None:
    assert names_in("heads * (nope + rope) - heads") == {"heads", "nope", "rope"} and names_in(3) == set()


@given(st.text(alphabet="0123456789eh.+-*/%() ads_\n\0'=<", max_size=40))
def test_any_text_gives_a_finite_number_or_a_reason(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            value = evaluate(text, NAMES)
        except ExpressionError as error:
            assert "\n" not in str(error)
        else:
            assert abs(value) <= 2**53
