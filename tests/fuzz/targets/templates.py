"""Templates of CloudFormation: their text, and an operation on a stack that is checked by one."""

import json

from headrace.platform.cloudformation.changes import Preview
from headrace.platform.cloudformation.evaluation import Evaluation, check_types
from headrace.platform.cloudformation.records import StackOperation, StackStatus
from headrace.platform.cloudformation.stack_names import StackName
from headrace.platform.cloudformation.template.parameters import check_declarations, given_texts
from headrace.platform.cloudformation.template.template import parse_template
from headrace.platform.host.operations import OPERATIONS
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.scope import AwsScope
from tests.fuzz.target import Target

_STACK = StackName(aws_scope=AwsScope(account="123456789012", region="us-east-1"), name="s", arn="arn", uid="u")
_YAML = b"""Parameters: {N: {Type: Number, Default: 1}}
Conditions: {C: !And [!Equals [!Ref N, 1], !Not [!Equals [a, b]]]}
Mappings: {M: {a: {b: [1, 2]}}}
Resources:
  L: {Type: AWS::Logs::LogGroup, Properties: {LogGroupName: !Sub "x-${N}", Tags: [{Key: a, Value: !GetAtt G.Arn}]}}
  G: {Type: AWS::Logs::LogGroup, Condition: C, DependsOn: [], Properties: {RetentionInDays: !FindInMap [M, a, b]}}
Outputs: {O: {Value: !Join [",", !Split ["-", !If [C, !Ref L, !Ref "AWS::NoValue"]]]}}
"""


def _check(data: bytes) -> None:
    template = parse_template(data.decode("utf-8", errors="replace"))
    check_types(template, OPERATIONS)
    check_declarations(template)
    operation = StackOperation(number=1, action="CREATE", parameters=given_texts(template, [], {}))
    evaluation = Evaluation.of(template, operation, _STACK)
    evaluation.check(OPERATIONS)
    json.dumps(Preview(evaluation=evaluation, status=StackStatus(), exports=lambda name: name).changes())


TARGETS = (
    Target(
        "stack-template",
        _check,
        refusals=(AwsError,),
        make_seeds=lambda: {
            "yaml": _YAML,
            "json": b'{"Resources": {"A": {"Type": "AWS::CDK::Metadata", "Properties": {"Analytics": {"Ref": "A"}}}}}',
        },
        words=(
            b"!Ref ",
            b"Fn::",
            b"${",
            b"}",
            b"&a ",
            b"*a",
            b"<<: ",
            b"!!binary ",
            b"---\n",
            b"[",
            b"{",
            b": ",
            b"- ",
        ),
        suite_cases=300,
    ),
)
"""All targets."""
