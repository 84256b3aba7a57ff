// Code that calls an endpoint, complete enough to be pasted into a shell or a file.

import { copyButton } from "./clipboard.js";
import { element } from "./dom.js";

const QUESTION = "How does rain form?";
let platform = { region: "us-east-1", asks_for_keys: false };

/** Ask the platform once for its region and whether it requires keys. */
export async function learnPlatform() {
  try {
    const answer = await fetch("/health"); // 503 while it drains, with the same facts
    platform = { ...platform, ...(await answer.json()) };
  } catch {
    // not reachable: the snippets keep the defaults until the page is loaded again
  }
}

function curlOf(name) {
  const key = platform.asks_for_keys ? ` \\\n  -H "Authorization: Bearer $AWS_SECRET_ACCESS_KEY"` : "";
  return `curl -N ${location.origin}/v1/chat/completions -H 'Content-Type: application/json'${key} \\
  -d '{"model": "${name}", "stream": true, "temperature": 0.2, "messages": [{"role": "user", "content": "${QUESTION}"}]}'`;
}

function boto3Of(name, component) {
  const any = `\n    aws_access_key_id="any",\n    aws_secret_access_key="any",`;
  const [source, keys] = platform.asks_for_keys ? [' # keys: eval "$(headrace env)"', ""] : ["", any];
  return `import boto3${source}

runtime = boto3.client(
    "sagemaker-runtime",
    endpoint_url="${location.origin}",
    region_name="${platform.region}",${keys}
)
answer = runtime.invoke_endpoint(
    EndpointName="${name}",${component ? `\n    InferenceComponentName="${component}",` : ""}
    ContentType="application/json",
    Body='{"messages": [{"role": "user", "content": "${QUESTION}"}], "max_tokens": 100, "temperature": 0.2}',
)
print(answer["Body"].read().decode())`;
}

/** Both snippets of an endpoint, or of one of its components, each with a button that copies it. */
export function snippets(name, component) {
  return [
    ["curl", curlOf(component ?? name)],
    ["Python, boto3", boto3Of(name, component)],
  ].map(([title, code]) => snippet(title, code));
}

/** A titled block of code with a button that copies it. */
export function snippet(title, code) {
  const head = element("figcaption", {}, element("strong", { textContent: title }), copyButton(code, title));
  return element("figure", { className: "snippet" }, head, element("pre", { tabIndex: 0 }, element("code", { textContent: code })));
}
