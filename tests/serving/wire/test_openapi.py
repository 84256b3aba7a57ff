"""The OpenAPI documents: whole, valid, and true to the structs that parse."""

import json
import re
from collections.abc import Iterator

import pytest
from jsonschema import Draft202012Validator

from headrace.serving.wire.openapi.document import render_openapi
from headrace.serving.wire.openapi.operations import PLATFORM_OPERATIONS, SERVER_OPERATIONS
from headrace.serving.wire.unknown_routes import OPENAI_METHODS

DOCUMENTS = {
    name: json.loads(render_openapi(operations, title="Headrace", version="1", description=""))
    for name, operations in (("server", SERVER_OPERATIONS), ("platform", PLATFORM_OPERATIONS))
}


def schemas(value: object) -> Iterator[object]:
    """Yield the schema of every body, response and parameter."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name == "schema":
                yield item
            yield from schemas(item)
    if isinstance(value, list):
        for item in value:
            yield from schemas(item)


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    if isinstance(value, list):
        for item in value:
            yield from references(item)


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_all_schemas_are_valid_and_all_references_resolve(document):
    components = document["components"]["schemas"]
    for schema in [*components.values(), *schemas(document["paths"])]:
        Draft202012Validator.check_schema(schema)
    assert {name.removeprefix("#/components/schemas/") for name in references(document)} <= components.keys()
    assert all(re.fullmatch(r"[a-zA-Z0-9._-]+", name) for name in components)


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_operations_have_their_own_ids_and_declare_their_path_parameters(document):
    ids = []
    for path, methods in document["paths"].items():
        for operation in methods.values():
            ids.append(operation["operationId"])
            declared = {item["name"] for item in operation.get("parameters", ()) if item["in"] == "path"}
            assert declared == set(re.findall(r"\{(\w+)\}", path))
            assert operation["responses"].keys() == {"200", "default"}
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_examples_match_their_schemas(document):
    for methods in document["paths"].values():
        for operation in methods.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                schema = {**content["schema"], "components": document["components"]}
                if "example" in content:
                    Draft202012Validator(schema).validate(content["example"])


def test_the_schema_of_a_chat_has_the_fields_that_are_parsed_and_the_notes_name_the_others():
    operation = DOCUMENTS["server"]["paths"]["/v1/chat/completions"]["post"]
    schema = DOCUMENTS["server"]["components"]["schemas"]["openai.chat.ChatBody"]
    assert {"messages", "max_completion_tokens", "tools", "top_k"} <= schema["properties"].keys()
    assert schema["required"] == ["messages"]
    assert "Accepted without effect: `bootstrap_host`" in operation["description"]
    assert "`use_beam_search`" in operation["description"]


def test_the_platform_describes_all_routes_below_v1():
    paths = DOCUMENTS["platform"]["paths"]
    assert OPENAI_METHODS.keys() <= paths.keys()
    assert "/v1/models/{name}" in paths
