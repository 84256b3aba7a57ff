// The first examples of the AWS SDK for JavaScript v3: an endpoint of the platform, whole and streamed.
import {
  InvokeEndpointCommand,
  InvokeEndpointWithResponseStreamCommand,
  SageMakerRuntimeClient,
} from "@aws-sdk/client-sagemaker-runtime";
import { DescribeEndpointCommand, SageMakerClient } from "@aws-sdk/client-sagemaker";
import { MODEL, expect, step } from "./common.mjs";

const runtime = new SageMakerRuntimeClient({});
const body = JSON.stringify({ inputs: "The capital of France is", parameters: { max_new_tokens: 16 } });
const input = { EndpointName: MODEL, ContentType: "application/json", Body: body };

await step("DescribeEndpoint", async () => {
  const endpoint = await new SageMakerClient({}).send(new DescribeEndpointCommand({ EndpointName: MODEL }));
  expect(endpoint.EndpointStatus === "InService", "InService");
});
await step("InvokeEndpoint", async () => {
  const answer = await runtime.send(new InvokeEndpointCommand(input));
  expect(JSON.parse(Buffer.from(answer.Body).toString())[0].generated_text, "text");
});
await step("InvokeEndpointWithResponseStream", async () => {
  const streamed = { ...input, Body: JSON.stringify({ ...JSON.parse(body), stream: true }) };
  const answer = await runtime.send(new InvokeEndpointWithResponseStreamCommand(streamed));
  let parts = 0;
  for await (const event of answer.Body) parts += event.PayloadPart ? 1 : 0;
  expect(parts > 1, "more than one part");
});
