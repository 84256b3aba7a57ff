// An endpoint with its role, its scaling and an alarm as an application of the CDK.
//
//     headrace up --detach
//     eval "$(headrace env)"
//     aws s3 mb s3://cdk-hnb659fds-assets-000000000000-us-east-1
//     npm install aws-cdk aws-cdk-lib constructs
//     npx cdk deploy --app "node app.mjs" --require-approval never
//     npx cdk destroy --app "node app.mjs" --force

import {
  App,
  CfnOutput,
  Duration,
  Stack,
  aws_applicationautoscaling as scaling,
  aws_cloudwatch as cloudwatch,
  aws_iam as iam,
  aws_sagemaker as sagemaker,
} from "aws-cdk-lib";

const VARIANT = "AllTraffic";
const stack = new Stack(new App(), "Hosting", { env: { account: "000000000000", region: "us-east-1" } });

const role = new iam.Role(stack, "Role", {
  assumedBy: new iam.ServicePrincipal("sagemaker.amazonaws.com"),
  managedPolicies: [iam.ManagedPolicy.fromAwsManagedPolicyName("AmazonSageMakerFullAccess")],
});
const model = new sagemaker.CfnModel(stack, "Model", {
  executionRoleArn: role.roleArn,
  primaryContainer: {
    image: "763104351884.dkr.ecr.us-east-1.amazonaws.com/djl-inference:0.36.0-lmi27.0.0-cu130",
    environment: { HF_MODEL_ID: "smollm2" },
  },
});
const config = new sagemaker.CfnEndpointConfig(stack, "Config", {
  productionVariants: [
    {
      variantName: VARIANT,
      modelName: model.attrModelName,
      instanceType: "ml.g5.2xlarge",
      initialInstanceCount: 1,
      initialVariantWeight: 1,
    },
  ],
});
const endpoint = new sagemaker.CfnEndpoint(stack, "Endpoint", { endpointConfigName: config.attrEndpointConfigName });

const target = new scaling.ScalableTarget(stack, "Target", {
  serviceNamespace: scaling.ServiceNamespace.SAGEMAKER,
  scalableDimension: "sagemaker:variant:DesiredInstanceCount",
  resourceId: `endpoint/${endpoint.attrEndpointName}/variant/${VARIANT}`,
  minCapacity: 1,
  maxCapacity: 2,
});
target.scaleToTrackMetric("Track", {
  predefinedMetric: scaling.PredefinedMetric.SAGEMAKER_VARIANT_INVOCATIONS_PER_INSTANCE,
  targetValue: 60,
});
new cloudwatch.Metric({
  namespace: "AWS/SageMaker",
  metricName: "Invocation5XXErrors",
  dimensionsMap: { EndpointName: endpoint.attrEndpointName, VariantName: VARIANT },
  statistic: "Sum",
  period: Duration.minutes(1),
}).createAlarm(stack, "Errors", { threshold: 1, evaluationPeriods: 1 });
new CfnOutput(stack, "EndpointName", { value: endpoint.attrEndpointName });
