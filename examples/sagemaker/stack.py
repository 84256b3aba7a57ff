"""
An endpoint with its role, its scaling and an alarm as one CloudFormation stack: create, change in place, delete.

    headrace up --detach
    eval "$(headrace env)"
    python examples/sagemaker/stack.py

The CDK and Terraform deploy the same resources: see the guide "Infrastructure as code".
"""

import json
import time

import boto3

NAME = f"smollm2-stack-{int(time.time())}"
TEMPLATE = """
Parameters:
  MaxInstances: {Type: Number, Default: 1}
Resources:
  Role:
    Type: AWS::IAM::Role
    Properties:
      AssumeRolePolicyDocument:
        Version: "2012-10-17"
        Statement: [{Effect: Allow, Principal: {Service: sagemaker.amazonaws.com}, Action: "sts:AssumeRole"}]
      ManagedPolicyArns: ["arn:aws:iam::aws:policy/AmazonSageMakerFullAccess"]
  Model:
    Type: AWS::SageMaker::Model
    Properties:
      ExecutionRoleArn: !GetAtt Role.Arn
      PrimaryContainer:
        Image: 763104351884.dkr.ecr.us-east-1.amazonaws.com/djl-inference:0.36.0-lmi27.0.0-cu130
        Environment: {"HF_MODEL_ID": "smollm2"}
  Config:
    Type: AWS::SageMaker::EndpointConfig
    Properties:
      ProductionVariants:
        - VariantName: AllTraffic
          ModelName: !GetAtt Model.ModelName
          InstanceType: ml.g5.2xlarge
          InitialInstanceCount: 1
          InitialVariantWeight: 1
  Endpoint:
    Type: AWS::SageMaker::Endpoint
    Properties:
      EndpointName: !Ref AWS::StackName
      EndpointConfigName: !GetAtt Config.EndpointConfigName
  Target:
    Type: AWS::ApplicationAutoScaling::ScalableTarget
    Properties:
      ServiceNamespace: sagemaker
      ScalableDimension: sagemaker:variant:DesiredInstanceCount
      ResourceId: !Sub "endpoint/${Endpoint.EndpointName}/variant/AllTraffic"
      MinCapacity: 1
      MaxCapacity: !Ref MaxInstances
  Slow:
    Type: AWS::CloudWatch::Alarm
    Properties:
      Namespace: AWS/SageMaker
      MetricName: ModelLatency
      Dimensions: [{Name: EndpointName, Value: !GetAtt Endpoint.EndpointName}, {Name: VariantName, Value: AllTraffic}]
      Statistic: Average
      Period: 60
      EvaluationPeriods: 3
      Threshold: 5000000
      ComparisonOperator: GreaterThanThreshold
Outputs:
  Endpoint: {Value: !GetAtt Endpoint.EndpointName}
"""
WAIT = {"Delay": 1, "MaxAttempts": 600}

stacks = boto3.client("cloudformation")
arn = stacks.create_stack(StackName=NAME, TemplateBody=TEMPLATE, Capabilities=["CAPABILITY_IAM"])["StackId"]
stacks.get_waiter("stack_create_complete").wait(StackName=NAME, WaiterConfig=WAIT)
(output,) = stacks.describe_stacks(StackName=NAME)["Stacks"][0]["Outputs"]
body = json.dumps({"inputs": "The sea is", "parameters": {"max_new_tokens": 8}})
answer = boto3.client("sagemaker-runtime").invoke_endpoint(
    EndpointName=output["OutputValue"], Body=body, ContentType="application/json"
)
print("answer: ", json.loads(answer["Body"].read())["generated_text"])

stacks.update_stack(
    StackName=NAME,
    UsePreviousTemplate=True,
    Parameters=[{"ParameterKey": "MaxInstances", "ParameterValue": "2"}],
    Capabilities=["CAPABILITY_IAM"],
)
stacks.get_waiter("stack_update_complete").wait(StackName=NAME, WaiterConfig=WAIT)
events = stacks.describe_stack_events(StackName=NAME)["StackEvents"]
changed = {event["LogicalResourceId"] for event in events if event["ResourceStatus"] == "UPDATE_COMPLETE"}
print("changed:", *sorted(changed - {NAME}))

stacks.delete_stack(StackName=NAME)
stacks.get_waiter("stack_delete_complete").wait(StackName=arn, WaiterConfig=WAIT)
