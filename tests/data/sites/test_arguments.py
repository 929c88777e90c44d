"""Arguments against JSON Schema: what fits, what does not and why, and which keywords are left
undecided."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.data.sites.arguments import Misfit, find_misfit

READ: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1, "description": "x"},
        "limit": {"type": ["integer", "null"], "minimum": 1, "maximum": 10},
        "mode": {"enum": ["text", 1]},
        "lines": {
            "type": "array",
            "items": {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]},
            "maxItems": 2,
        },
        "where": {"anyOf": [{"type": "string"}, {"$ref": "#/definitions/place"}]},
    },
    "required": ["path"],
    "additionalProperties": False,
    "definitions": {
        "place": {
            "type": "object",
            "properties": {"row": {"type": "integer", "exclusiveMinimum": 0}},
            "required": ["row"],
        }
    },
}


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "a.py"},
        {"path": "a.py", "limit": None, "mode": 1},
        {"path": "a.py", "limit": 2.0, "lines": [{"n": 0.5}, {"n": 1, "more": True}]},
        {"path": "a.py", "where": {"row": 1}},
        {"path": "a.py", "where": "here"},
    ],
)
def test_what_fits_has_no_problem_and_leaves_nothing_open(arguments: dict[str, Any]) -> None:
    assert find_misfit(arguments, READ) == Misfit()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "'path' is missing"),
        ({"path": 3}, "path: 3 is not a string"),
        ({"path": ""}, 'path: "" is shorter than 1'),
        ({"path": "a", "file": "b"}, "there is no argument 'file'"),
        ({"path": "a", "limit": True}, "limit: true is not an integer or a null"),
        ({"path": "a", "limit": 2.5}, "limit: 2.5 is not an integer or a null"),
        ({"path": "a", "limit": 0}, "limit: 0 is below 1"),
        ({"path": "a", "limit": 11}, "limit: 11 is above 10"),
        ({"path": "a", "mode": True}, 'mode: true is none of "text", 1'),
        ({"path": "a", "lines": [{}]}, "lines.[0]: 'n' is missing"),
        (
            {"path": "a", "lines": [{"n": 1}] * 3},
            'lines: [{"n": 1}, {"n": 1}, {"n": 1}] is longer than 2',
        ),
        ({"path": "a", "where": {"row": 0}}, 'where: {"row": 0} fits none of its alternatives'),
    ],
)
def test_each_problem_is_named_with_its_place(arguments: dict[str, Any], problem: str) -> None:
    assert find_misfit(arguments, READ).problem == problem


@pytest.mark.parametrize(
    "keyword", ["not", "patternProperties", "if", "format", "pattern", "oneOf"]
)
def test_a_keyword_that_is_not_read_leaves_the_question_open_and_a_found_problem_stands(
    keyword: str,
) -> None:
    schema = {
        "type": "object",
        "properties": {"path": {"type": "string", keyword: {}}},
        "required": ["path"],
    }
    assert find_misfit({"path": "a"}, schema) == Misfit(unread=keyword)
    assert find_misfit({"path": 1}, schema).problem
    assert find_misfit({}, schema).problem == "'path' is missing"


def test_no_schema_is_taken_for_one_that_forbids_nothing_by_mistake() -> None:
    endless: dict[str, Any] = {
        "$defs": {"a": {"$ref": "#/$defs/a"}},
        "properties": {"x": {"$ref": "#/$defs/a"}},
    }
    assert find_misfit({"x": 1}, endless).unread == "nesting"
    assert (
        find_misfit({"x": 1}, {"properties": {"x": {"$ref": "http://elsewhere/y"}}}).unread
        == "$ref"
    )
    assert find_misfit({"x": 1}, {"properties": {"x": False}}).problem == "x: 1 is not allowed"
    assert find_misfit({"x": 1}, {"properties": {"x": {"type": "date"}}}).unread == "type"
    assert find_misfit(
        {"x": 1}, {"properties": {"x": {"anyOf": [{"type": "string"}, {"not": {}}]}}}
    ) == Misfit(unread="not")
    assert find_misfit({"x": 1}, {"allOf": [{"required": ["y"]}]}).problem == "'y' is missing"
    for broken in (
        {"properties": []},
        {"required": "x"},
        {"enum": 3},
        {"items": [{}]},
        {"anyOf": {}},
        {"minimum": "1"},
    ):
        assert (
            find_misfit({"x": 1}, {"properties": {"x": broken}}).problem == ""
            and find_misfit({"x": [1]}, {"properties": {"x": broken}}).unread
        )
    wide = {"additionalProperties": {"type": "string"}}
    assert (
        find_misfit({"x": "a"}, wide) == Misfit()
        and find_misfit({"x": 1}, wide).problem == "x: 1 is not a string"
    )
