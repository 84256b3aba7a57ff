"""Templates: their text, functions, parameters and errors, all without a platform."""

import json
from typing import Any

import pytest

from headrace.platform.cloudformation.evaluation import Evaluation, Recorded, check_types
from headrace.platform.cloudformation.properties import difference
from headrace.platform.cloudformation.records import StackOperation
from headrace.platform.cloudformation.stack_names import StackName
from headrace.platform.cloudformation.template.parameters import check_declarations, given_texts
from headrace.platform.cloudformation.template.reading import MAX_DEPTH, read_template
from headrace.platform.cloudformation.template.template import parse_template
from headrace.platform.cloudformation.types import type_rows
from headrace.platform.host.operations import OPERATIONS
from headrace.serving.wire.aws.errors import AwsError
from tests.platform.control.support import AWS_SCOPE

STACK = StackName(aws_scope=AWS_SCOPE, name="s", arn="arn:stack", uid="u")
HEAD = """
Parameters: {Word: {Type: String, Default: a-b-c}, Words: {Type: CommaDelimitedList, Default: "x, y"}}
Mappings: {Map: {key: {value: [1, 2], text: found}}}
Conditions:
  Same: !Equals [!Ref Word, a-b-c]
  Other: !Not [!Condition Same]
  Both: !And [!Condition Same, !Or [!Condition Other, !Equals [1, "1"]]]
"""
ALARM = "Namespace: n, MetricName: m, Period: 60, EvaluationPeriods: 1, ComparisonOperator: GreaterThanThreshold"


def evaluation(text: str, **given: str) -> Evaluation:
    template = parse_template(text)
    check_types(template, OPERATIONS)
    check_declarations(template)
    texts = given_texts(template, [{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()], {})
    return Evaluation.of(template, StackOperation(number=1, action="CREATE", parameters=texts), STACK)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("!Ref Word", "a-b-c"),
        ("!Ref Words", ["x", "y"]),
        ("!Ref AWS::Region", "us-east-1"),
        ("!Ref AWS::URLSuffix", "amazonaws.com"),
        ("{Fn::Sub: 'a ${Word} ${!Literal} ${AWS::AccountId}'}", "a a-b-c ${Literal} 123456789012"),
        ("!Sub ['${Own}${Word}', {Own: !Ref AWS::Partition}]", "awsa-b-c"),
        ("!Join [':', !Ref Words]", "x:y"),
        ("!Select [1, !Split ['-', !Ref Word]]", "b"),
        ("!FindInMap [Map, key, value]", [1, 2]),
        ("!If [Same, 1, 2]", 1),
        ("!If [Other, 1, !Ref AWS::NoValue]", None),
        ("!If [Both, !FindInMap [Map, key, text], x]", "found"),
        ("{Fn::Base64: hello}", "aGVsbG8="),
        ("!GetAZs ''", ["us-east-1a"]),
        ("[012, 1_000, 2012-10-17, 0x1f, !!str 7]", ["012", "1_000", "2012-10-17", "0x1f", "7"]),
        ("['true', yes, ~, 1.5]", ["true", True, None, 1.5]),
        ("{Version: 2012-10-17, Condition: {a: b}}", {"Version": "2012-10-17", "Condition": {"a": "b"}}),
    ],
)
def test_functions_and_short_forms(text: str, expected: Any) -> None:
    found = evaluation(f"{HEAD}\nResources: {{M: {{Type: AWS::CDK::Metadata, Properties: {{Analytics: {text}}}}}}}")
    assert found.properties("M", found.evaluator(Recorded())).get("Analytics") == expected


def one(more: str = "", rest: str = "") -> str:
    """A template with one resource."""
    return f"Resources: {{A: {{Type: AWS::CDK::Metadata{more}}}}}\n{rest}"


def alarm(more: str) -> str:
    return f"Resources: {{A: {{Type: AWS::CloudWatch::Alarm, Properties: {{{ALARM}, {more}}}}}}}"


def parameter(declared: str) -> str:
    return one(rest=f"Parameters: {{P: {{{declared}}}}}")


REFUSED = {
    "not well-formed. (line 2, column 1)": "a: [\n",
    "JSON not well-formed. (line 1, column 2)": "{a}",
    "aliases are not allowed": "Resources: &a {A: *a}",
    "aliases are not": "a: &x 1",
    "the tag tag:yaml.org,2002:binary is not supported": "Resources: !!binary aGk=",
    "a key of a mapping is no text": "Resources: {<<: {A: 1}}",
    "given twice": "Resources: {A: 1, A: 2}",
    "several documents": "--- {}\n--- {}",
    "levels": f"a: {'[' * (MAX_DEPTH + 1)}{']' * (MAX_DEPTH + 1)}",
    "nested deeper": json.dumps({"a": json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)}),
    "unsupported structure": "just text",
    "At least one Resources member": "Resources: {}",
    "Invalid template property or properties [Other]": "Resources: {}\nOther: 1",
    "Unrecognized resource types: [AWS::EC2::VPC]. Headrace has AWS::Sage": "Resources: {A: {Type: AWS::EC2::VPC}}",
    "The transform AWS::LanguageExtensions is not supported": one(rest="Transform: AWS::LanguageExtensions"),
    "resource attribute CreationPolicy is not supported by Headrace": one(", CreationPolicy: {}"),
    "DeletionPolicy is Snapshot": one(", DeletionPolicy: Snapshot"),
    "Resource name A-b is non alphanumeric": "Resources: {A-b: {Type: AWS::CDK::Metadata}}",
    "Unresolved resource dependencies [X] in the Resources block": one(", DependsOn: X"),
    "Unresolved resource dependencies [Y] in the Outputs block": one(rest="Outputs: {O: {Value: !Ref Y}}"),
    "Circular dependency between resources": one(", DependsOn: B}, B: {Type: AWS::CDK::Metadata, DependsOn: A"),
    "does not support attribute type No in Fn::GetAtt": one(rest="Outputs: {O: {Value: !GetAtt A.No}}"),
    "the function Fn::Cidr is not supported": one(", Properties: {Analytics: !Cidr [a, 1, 2]}"),
    "extraneous key [Colour] is not permitted": alarm("Colour: red"),
    "#/Dimensions/0: extraneous key [Nmae]": alarm("Dimensions: [{Nmae: a}]"),
    "#/Threshold: expected type: Double, found: str": alarm("Threshold: many"),
    "Parameters: [P] must have values": parameter("Type: String"),
    "the type AWS::EC2::VPC::Id of parameter P": parameter("Type: AWS::EC2::VPC::Id"),
    "Parameter 'P' must match pattern": parameter("Type: String, Default: A, AllowedPattern: '[a-z]+'"),
    "takes too long to match": parameter(f"Type: String, Default: {'a' * 60}!, AllowedPattern: '(a+)+'"),
    "must be one of AllowedValues": parameter("Type: String, Default: a, AllowedValues: [b]"),
    "must be a number not less than 2": parameter("Type: Number, Default: 1, MinValue: 2"),
    "Rule R failed: why": one(rest="Rules: {R: {Assertions: [{Assert: !Equals [a, b], AssertDescription: why}]}}"),
    "more than 8000000 characters": one(
        f", Properties: {{Analytics: [{','.join(['!Ref P'] * 2000)}]}}",
        f"Parameters: {{P: {{Type: String, Default: {'x' * 4096}}}}}",
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_templates_are_refused_before_anything_is_created(message: str) -> None:
    with pytest.raises(AwsError) as caught:
        evaluation(REFUSED[message]).check(OPERATIONS)
    assert message in caught.value.message
    assert caught.value.code == "ValidationError"


def test_a_large_template_has_a_bounded_number_of_values() -> None:
    with pytest.raises(AwsError, match="more than 100000 values"):
        read_template("a: [" + "1," * 200_000 + "]")


@pytest.mark.parametrize(
    ("type_name", "old", "new", "replacing"),
    [
        ("SageMaker::Model", {"ExecutionRoleArn": "a"}, {"ExecutionRoleArn": "b", "Tags": [1]}, ("ExecutionRoleArn",)),
        ("SageMaker::Endpoint", {"EndpointConfigName": "a"}, {"EndpointConfigName": "b", "Tags": []}, ()),
        ("SageMaker::Endpoint", {"EndpointName": "a"}, {}, ("EndpointName",)),
        ("SageMaker::InferenceComponent", {"RuntimeConfig": 1, "Specification": 1}, {}, ()),
        ("ApplicationAutoScaling::ScalableTarget", {"MaxCapacity": 1, "ResourceId": 1}, {}, ("ResourceId",)),
        ("ApplicationAutoScaling::ScalingPolicy", {"PolicyType": 1, "PolicyName": 1}, {}, ("PolicyName",)),
        ("IAM::Role", {"AssumeRolePolicyDocument": 1, "Description": 1, "Policies": 1, "Path": 1}, {}, ("Path",)),
        ("IAM::Policy", {"PolicyDocument": 1, "Roles": 1}, {}, ()),
        ("CloudWatch::Alarm", {"Threshold": 1, "AlarmName": 1}, {}, ("AlarmName",)),
        ("Logs::LogGroup", {"RetentionInDays": 1, "LogGroupName": 1}, {}, ("LogGroupName",)),
        ("CloudWatch::Dashboard", {"DashboardBody": 1, "DashboardName": 1}, {}, ("DashboardName",)),
    ],
)
def test_a_change_replaces_a_resource_as_the_template_reference_says(
    type_name: str, old: dict[str, Any], new: dict[str, Any], replacing: tuple[str, ...]
) -> None:
    change = difference(type_rows()[f"AWS::{type_name}"], old, new)
    assert change.replacing == replacing
    assert {*change.changed} == {name for name in {**old, **new} if old.get(name) != new.get(name)}
